//! Define a model once, compile it for every target.
