"""How Sphinx makes the site of what `site.py` gathered. See `scripts/dev/site`."""

from dibs import __version__

project = "dibs"
version = release = __version__
extensions = ["myst_parser", "scripts.dev.pages.excerpts"]
html_theme = "furo"
html_title = f"dibs {__version__}"
html_copy_source = False
html_static_path = ["static"]
html_show_copyright = False
# Links to headings are checked as far as any page goes down.
myst_heading_anchors = 5
myst_links_external_new_tab = False
# The configuration of a proxy, and outputs that are nearly JSON, are shown as they are.
suppress_warnings = ["misc.highlighting_failure"]
