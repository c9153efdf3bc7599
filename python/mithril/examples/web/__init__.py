"""Pages that run models in the browser: ``python -m mithril.examples.web digits FOLDER``."""
