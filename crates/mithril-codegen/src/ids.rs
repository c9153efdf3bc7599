//! Typed positions, as those of a graph are, and tables that only positions of their own kind look into.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut, Range, RangeFrom};

/// A position in a [`Table`].
pub trait Id: Copy + Eq + Ord + fmt::Debug {
    /// From a position.
    fn new(i: usize) -> Self;
    /// The position.
    fn index(self) -> usize;
    /// The position after this one.
    #[must_use]
    fn next(self) -> Self {
        Self::new(self.index() + 1)
    }
    /// The positions from this one on, up to `end`, which is not one of them.
    fn until(self, end: Self) -> impl DoubleEndedIterator<Item = Self> {
        (self.index()..end.index()).map(Self::new)
    }
}

/// Declares a type of positions.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);
        impl $crate::ids::Id for $name {
            fn new(i: usize) -> Self {
                Self(u32::try_from(i).unwrap_or(u32::MAX))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
pub(crate) use id;

id!(
    /// An input of a program, in the order of the graph.
    InputId
);
id!(
    /// An output of a program, in the order of the graph: its outputs, then the updated states.
    OutputId
);

/// A list whose elements are found by ids of one type.
#[derive(Clone, PartialEq)]
pub struct Table<I, T> {
    items: Vec<T>,
    ids: PhantomData<I>,
}

impl<I: Id, T> Table<I, T> {
    /// As many elements as there are `others`, each the same.
    pub fn beside<U>(others: &Table<I, U>, item: T) -> Self
    where
        T: Clone,
    {
        Self::from(vec![item; others.len()])
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The id that the next element will have.
    pub fn end(&self) -> I {
        I::new(self.items.len())
    }
    /// All ids.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + use<I, T> {
        (0..self.items.len()).map(I::new)
    }
    /// All elements.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }
    /// All elements, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }
    /// All elements with their ids.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(i, item)| (I::new(i), item))
    }
    /// The element with this id, if there is one.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }
    /// The first element that passes.
    pub fn position(&self, passes: impl FnMut(&T) -> bool) -> Option<I> {
        self.items.iter().position(passes).map(I::new)
    }
    /// The last element that passes.
    pub fn last_position(&self, passes: impl FnMut(&T) -> bool) -> Option<I> {
        self.items.iter().rposition(passes).map(I::new)
    }
    /// The last element, to be changed.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.items.last_mut()
    }
    /// Adds an element at the end; its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::new(self.items.len() - 1)
    }
    /// Puts an element in front of another one; those from there on get the next ids.
    pub fn insert(&mut self, before: I, item: T) {
        self.items.insert(before.index(), item);
    }
    /// Takes an element out; those behind it get the ids before.
    pub fn remove(&mut self, id: I) -> T {
        self.items.remove(id.index())
    }
    /// Removes the elements from this one on.
    pub fn truncate(&mut self, end: I) {
        self.items.truncate(end.index());
    }
    /// Keeps the elements that pass, which get new ids.
    pub fn retain(&mut self, passes: impl FnMut(&T) -> bool) {
        self.items.retain(passes);
    }
    /// Keeps the elements that pass with their ids so far; they get new ones.
    pub fn retain_entries(&mut self, mut passes: impl FnMut(I, &T) -> bool) {
        let mut next = 0;
        self.items.retain(|item| {
            next += 1;
            passes(I::new(next - 1), item)
        });
    }
    /// Puts elements in the place of others.
    pub fn splice(&mut self, range: Range<I>, items: impl IntoIterator<Item = T>) {
        self.items.splice(range.start.index()..range.end.index(), items);
    }
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Self { items: Vec::new(), ids: PhantomData }
    }
}

impl<I, T: fmt::Debug> fmt::Debug for Table<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}

impl<I, T> From<Vec<T>> for Table<I, T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, ids: PhantomData }
    }
}

impl<I, T> FromIterator<T> for Table<I, T> {
    fn from_iter<A: IntoIterator<Item = T>>(items: A) -> Self {
        Self::from(Vec::from_iter(items))
    }
}

impl<I, T> Extend<T> for Table<I, T> {
    fn extend<A: IntoIterator<Item = T>>(&mut self, items: A) {
        self.items.extend(items);
    }
}

impl<I, T> IntoIterator for Table<I, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

impl<'a, I, T> IntoIterator for &'a Table<I, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

impl<'a, I, T> IntoIterator for &'a mut Table<I, T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.items.iter_mut()
    }
}

impl<I: Id, T> Index<I> for Table<I, T> {
    type Output = T;
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for Table<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I: Id, T> Index<Range<I>> for Table<I, T> {
    type Output = [T];
    fn index(&self, range: Range<I>) -> &[T] {
        &self.items[range.start.index()..range.end.index()]
    }
}

impl<I: Id, T> Index<RangeFrom<I>> for Table<I, T> {
    type Output = [T];
    fn index(&self, range: RangeFrom<I>) -> &[T] {
        &self.items[range.start.index()..]
    }
}
