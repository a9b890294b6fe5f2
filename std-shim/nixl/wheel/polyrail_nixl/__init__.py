"""The backend POLYRAIL of NIXL, as a wheel.

The wheels nixl-cu12 and nixl-cu13 load backends from a folder of their own, and this wheel installs the plugin there. So
NIXL finds it without settings if both are in the same site-packages. Otherwise `python -m polyrail_nixl` prints
the line that sets NIXL_PLUGIN_DIR.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

NIXLS = ("nixl_cu12", "nixl_cu13")
_PLUGIN = "libplugin_POLYRAIL.so"


def _folder_of(nixl, site):
    """Returns the folder from which a wheel of NIXL in the site-packages `site` loads backends: the folder `plugins`
    beside its library, which mesonpy puts beside the package."""
    return site / f".{nixl}.mesonpy.libs" / "plugins"


def plugin_dir():
    """Returns the folder of the plugin, for NIXL_PLUGIN_DIR. If a wheel of NIXL is in the same site-packages, the folder
    also has the backends of that wheel."""
    site = Path(__file__).resolve().parent.parent
    folders = [_folder_of(nixl, site) for nixl in NIXLS]
    has_others = (folder for folder in folders if any(path.name != _PLUGIN for path in folder.iterdir()))
    return next(has_others, folders[0])


def finders():
    """Returns the installed wheels of NIXL that find the plugin, with their versions: `nixl_cu12 1.5.1`."""
    chosen = os.environ.get("NIXL_PLUGIN_DIR")
    found = []
    for nixl in NIXLS:
        spec = find_spec(nixl)
        if spec is None or spec.origin is None:
            continue
        folder = Path(chosen) if chosen else _folder_of(nixl, Path(spec.origin).parent.parent)
        if (folder / _PLUGIN).is_file():
            try:
                found.append(f"{nixl} {version(nixl)}")
            except PackageNotFoundError:
                # A build folder on PYTHONPATH.
                found.append(nixl)
    return found
