//! Names that nothing else has, however often the same one is asked for.

use rustc_hash::{FxHashMap, FxHashSet};

/// Gives names: one that is taken gets a number.
///
/// ```
/// use mithril_ir::unique_names::UniqueNames;
///
/// let mut names = UniqueNames::numbered_from(2);
/// assert_eq!(names.fresh("x"), "x");
/// assert_eq!(names.fresh("x_3"), "x_3");
/// assert_eq!([names.fresh("x"), names.fresh("x")], ["x_2", "x_4"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct UniqueNames {
    taken: FxHashSet<String>,
    /// The number to try next behind a name.
    next: FxHashMap<String, usize>,
    first: usize,
}

impl UniqueNames {
    /// No names yet; the first number behind one that is taken is this.
    #[must_use]
    pub fn numbered_from(first: usize) -> Self {
        Self { first, ..Self::default() }
    }
    /// Takes a name; whether it was free.
    pub fn take(&mut self, name: &str) -> bool {
        self.taken.insert(name.to_owned())
    }
    /// The name, or one like it if it is taken. Either is taken from now on.
    pub fn fresh(&mut self, name: &str) -> String {
        if self.take(name) {
            return name.to_owned();
        }
        let next = self.next.entry(name.to_owned()).or_insert(self.first);
        loop {
            let chosen = format!("{name}_{next}");
            *next += 1;
            if self.taken.insert(chosen.clone()) {
                return chosen;
            }
        }
    }
}
