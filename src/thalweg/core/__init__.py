"""What flows and what everybody may say: numpy and the standard library only, no I/O and no clock."""
