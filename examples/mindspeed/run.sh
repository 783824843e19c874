#!/usr/bin/env bash
# run.sh CONFIG [--iters 10]: train a few steps from a configuration of MindSpeed-MM, with tiny models and made data
# where its paths point. Run it in an empty folder; run it again and it goes on from its checkpoint.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec env PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 "${PYTHON:-python3}" "$here/train.py" "$@"
