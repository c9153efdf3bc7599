"""Programs that show what Mithril does."""
