//! Sections of an axis that are divided one by one.
//!
//! A fused weight holds several weights along one axis: queries, keys and values; the gate and what it multiplies. Where
//! devices are to hold a part of each, the axis is divided section by section: the device `p` of `n` holds block `p` of
//! each section, one behind another.

use std::fmt;

/// How many sections an axis may have.
const MOST: usize = 8;

/// The sizes of the sections of an axis, in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sections {
    sizes: [u32; MOST],
    count: u8,
}

/// A section: where it begins on the whole axis, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Where it begins.
    pub start: i64,
    /// Its size.
    pub size: i64,
}

impl Sections {
    /// Sections of these sizes; `None` if there are more than 8, one is empty or does not divide.
    pub fn new(sizes: &[i64], devices: i64) -> Option<Self> {
        let mut all = [0; MOST];
        for (i, size) in sizes.iter().enumerate() {
            if *size <= 0 || size % devices != 0 {
                return None;
            }
            *all.get_mut(i)? = u32::try_from(*size).ok()?;
        }
        Some(Self { sizes: all, count: sizes.len() as u8 })
    }
    /// The sections in order.
    pub fn iter(&self) -> impl Iterator<Item = Section> + '_ {
        let sizes = self.sizes[..usize::from(self.count)].iter();
        sizes.scan(0, |start, &size| {
            let section = Section { start: *start, size: i64::from(size) };
            *start += section.size;
            Some(section)
        })
    }
    /// The sizes in order.
    pub fn sizes(&self) -> Vec<usize> {
        self.iter().map(|section| section.size as usize).collect()
    }
    /// Size of the axis.
    pub fn total(&self) -> i64 {
        self.iter().map(|section| section.size).sum()
    }
}

impl fmt::Debug for Sections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|section| section.size)).finish()
    }
}
