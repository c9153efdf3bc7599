"""Programs that show what Mithril does. In the repository they are also importable as ``examples``."""
