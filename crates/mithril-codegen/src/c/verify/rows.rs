//! Whether nests that are done row by row read of each other what was made in the same row.

use std::collections::HashSet;

use crate::c::ir::expr::{Index, Var};
use crate::c::ir::program::{Nest, Rows};
use crate::c::verify::index::{Point, Scope, points};

/// Elements of a row up to which all of them are looked at.
const LARGEST: i64 = 1 << 12;

/// Rows that are looked at.
const ROWS: usize = 6;

/// What a nest of the rows fills.
#[derive(Debug)]
pub struct Written<'a> {
    /// The nest.
    pub nest: &'a Nest,
    /// At which coordinates it stores.
    pub at: &'a [Index],
}

/// Whether what is read at these coordinates was stored in the row in hand.
pub fn same_row(rows: &Rows, written: &Written<'_>, scope: &Scope, read: &[Index]) -> Result<(), String> {
    let is_inner = |v: &Var| !rows.vars.contains(v);
    let inner: Vec<Var> = written.nest.vars.iter().copied().filter(is_inner).collect();
    let count: i64 = inner.iter().map(|v| v.size).product();
    if read == written.at || count > LARGEST || scope.is_empty() {
        return Ok(());
    }
    let vars: Vec<Var> = scope.vars.iter().copied().filter(is_inner).collect();
    let mut looked_at: Vec<String> = Vec::new();
    for row in points(&rows.vars) {
        if looked_at.len() >= ROWS {
            break;
        }
        if looked_at.contains(&row.text()) {
            continue;
        }
        looked_at.push(row.text());
        let stored: HashSet<Option<Vec<i64>>> =
            all(&inner).map(|point| coordinates(&point.and(&row), written.at)).collect();
        for point in points(&vars) {
            let point = point.and(&row);
            // What depends on what is in a tensor is not known here.
            let Some(at) = coordinates(&point, read).filter(|_| point.is_in(scope)) else { continue };
            if !stored.contains(&Some(at.clone())) {
                return Err(format!("at {at:?}, which another row fills ({})", row.text()));
            }
        }
    }
    Ok(())
}

fn coordinates(point: &Point, at: &[Index]) -> Option<Vec<i64>> {
    at.iter().map(|index| point.index(index)).collect()
}

/// All values of variables.
fn all(vars: &[Var]) -> impl Iterator<Item = Point> + '_ {
    let count: i64 = vars.iter().map(|v| v.size).product();
    (0..count).map(move |mut n| {
        let values = vars.iter().rev().map(|v| {
            let value = n % v.size;
            n /= v.size;
            (v.id, value)
        });
        Point::new(values.collect())
    })
}
