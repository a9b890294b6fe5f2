# NIXL's wheel in a separate virtual environment below target/, for other scripts, which run in the repository's folder.
NIXL="nixl-cu12==1.5.1"
venv="$PWD/target/nixl/venv"

# Makes the environment, unless it is there.
install_venv() {
  "$venv/bin/python" -c "import nixl_cu12, numpy" 2>/dev/null && return
  python3 -m venv --clear "$venv"
  # Only the required packages: the wheel's other dependencies are optional.
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$NIXL" numpy ||
    { echo "skipped: pip cannot install $NIXL" >&2; return 77; }
}
