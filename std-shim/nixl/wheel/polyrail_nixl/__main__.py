"""Prints one line for a shell, which makes NIXL find the plugin: eval "$(python -m polyrail_nixl)"."""

import shlex

from polyrail_nixl import finders, plugin_dir

found = finders()
if found:
    print(f"# POLYRAIL is found by {', '.join(found)}")
else:
    print(f"export NIXL_PLUGIN_DIR={shlex.quote(str(plugin_dir()))}")
