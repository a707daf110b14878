#!/bin/sh
# Builds the site of the documentation into build/docs: the pages of docs/, and a reference of the Python
# package, which it builds as python/tests/run.sh does. Fails where a link leads nowhere.
set -eu
exec "$(dirname "$0")/../python/tests/run.sh" docs
