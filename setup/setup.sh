#!/usr/bin/env bash
# Everything that a build needs and a checkout does not have: system packages (packages.txt) and a Python environment
# in .venv (requirements.txt). Does only what is still missing.
#
#   setup/setup.sh        all of it; with TORCH_DIR set, .venv goes without torch
#   setup/setup.sh pure   what builds and tests without LibTorch, and no Python environment
#   setup/setup.sh demo   the system packages of `make demo`, and no Python environment
#   setup/setup.sh dev    the system packages of `make format` and `make tidy` alone
#   setup/setup.sh browser   a browser for the test of `dualpipe ab`'s page; does not fail where there is none to install
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}

say() { echo "[setup] $*"; }
fail() { echo "[setup] $*" >&2; exit 1; }

case "$what" in
  all) groups="demo pure all" ;;
  pure) groups="demo pure" ;;
  demo | dev | browser) groups=$what ;;
  *) fail "usage: setup/setup.sh [pure|demo|dev|browser]" ;;
esac

wanted_packages() {
  awk -v groups=" $groups " '!/^#/ && NF == 2 && index(groups, " " $2 " ") { print $1 }' setup/packages.txt
}

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 2>/dev/null | awk '$1 == "ii" { print $2 }')
  wanted_packages | grep -vxF "$installed" || true
}

install_packages() {
  local missing
  command -v dpkg-query >/dev/null ||
    fail "this is neither Debian nor Ubuntu: install the counterparts of these yourself:" $(wanted_packages)
  missing=$(missing_packages | xargs)
  [ -n "$missing" ] || return 0
  [ "$(id -u)" -eq 0 ] || fail "system packages are missing. Install them, then repeat:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends $missing"
  say "installing system packages: $missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends $missing
}

# One test alone wants it, and says so where it is missing.
install_browser() {
  local missing
  missing=$(missing_packages | xargs)
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -eq 0 ]; then
    say "installing system packages: $missing"
    export DEBIAN_FRONTEND=noninteractive
    if apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; then return; fi
  fi
  say "the browser test is skipped without these packages or their counterparts: $missing"
}

# The first Python that can make an environment; torch 2.15 wants 3.11.
usable_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" /usr/bin/python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "Python 3.11 or newer with venv is needed, found $(python3 --version 2>&1). Name one: PYTHON=/usr/bin/python3.12"
}

requirements() {
  if [ -n "${TORCH_DIR:-}" ]; then
    grep -v '^torch==' setup/requirements.txt
  else
    cat setup/requirements.txt setup/requirements_python.txt
  fi
}

# Packages of the lines "# source: name==version": whatever Python they declare, built with what is in .venv.
install_from_source() {
  local package
  for package in $(sed -n 's/^# source: //p' .venv/requirements.txt); do
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation \
      --ignore-requires-python --no-binary "${package%%==*}" "$package"
  done
}

# The stamp holds what was installed; it is written last, so an interrupted run is taken up again.
make_environment() {
  local stamp=.venv/requirements.stamp python
  if [ -x .venv/bin/python ] && [ -f "$stamp" ] && [ "$(requirements)" = "$(cat "$stamp")" ]; then return; fi
  if ! .venv/bin/python -c '' 2>/dev/null; then
    python=$(usable_python)
    say "making .venv"
    rm -rf .venv
    "$python" -m venv .venv
  fi
  say "installing $(requirements | grep -v '^#' | xargs) into .venv"
  requirements > .venv/requirements.txt
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input -r .venv/requirements.txt
  install_from_source
  mv .venv/requirements.txt "$stamp"
}

if [ "$what" = browser ]; then
  install_browser
  exit
fi
install_packages
if [ "$what" = all ]; then make_environment; fi
