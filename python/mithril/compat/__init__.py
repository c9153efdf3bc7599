"""Names that documents speak of and other packages lack, added on request only."""
