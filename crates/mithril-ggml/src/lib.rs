//! ggml behind an interface that cannot abort the process.
