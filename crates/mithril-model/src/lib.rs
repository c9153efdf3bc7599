//! Logical models: connections, layers, save and load.
