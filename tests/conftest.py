"""What all tests share: Ctrl-C works in them, also where the shell that started them has switched it off."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script put into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
