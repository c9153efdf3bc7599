//! Files, processes and executables: the only crate with unsafe code.
