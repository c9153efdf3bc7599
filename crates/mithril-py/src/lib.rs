//! The Python extension module of Mithril: the only crate that names PyO3.
