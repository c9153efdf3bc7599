//! The table of a model: parts, what they are, shapes and numbers of parameters.

use mithril_ir::{Code, Dim, Result, Role};

use crate::flatten::{FlattenOptions, rows};
use crate::model::{Composite, Model};

/// Parts are listed this deep.
const MAX_DEPTH: usize = 3;

/// A part of a model.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub path: String,
    /// 1 for the parts of the model itself.
    pub depth: usize,
    pub class: String,
    /// Shapes of the outputs.
    pub shape: String,
    /// Number of learned values that no part before has; `None` if not known.
    pub parameters: Option<Dim>,
}

impl Model {
    /// A table of the parts, with shapes as far as the model knows them.
    pub fn summary(&self) -> String {
        self.summary_with(&FlattenOptions::default()).unwrap_or_else(|_| self.table(self.known_rows()))
    }
    /// A table of the parts, with what is known when compiling.
    pub fn summary_with(&self, options: &FlattenOptions) -> Result<String> {
        match rows(self, options) {
            Ok(rows) => Ok(self.table(rows)),
            Err(e) if matches!(e.code(), Code::UnknownShape | Code::EmptyModel) => {
                Ok(self.table(self.known_rows()))
            }
            Err(e) => Err(e),
        }
    }

    /// Direct parts with what the solver knows.
    fn known_rows(&self) -> Vec<Row> {
        let Ok(model) = self.wrapped() else { return Vec::new() };
        let Some(c) = model.composite() else { return Vec::new() };
        let mut counted = vec![false; c.edges.len()];
        c.children
            .iter()
            .enumerate()
            .filter(|(_, child)| child.model.literal_fn().is_none())
            .map(|(i, child)| Row {
                path: child.name.to_string(),
                depth: 1,
                class: child.model.class().to_owned(),
                shape: child
                    .outputs
                    .iter()
                    .map(|e| c.solver.shape(c.edge(*e).slot).to_string())
                    .collect::<Vec<_>>()
                    .join(", "),
                parameters: count(c, i as u32, &mut counted),
            })
            .collect()
    }

    fn table(&self, rows: Vec<Row>) -> String {
        let total = rows
            .iter()
            .filter(|r| r.depth == 1)
            .try_fold(Dim::Const(0), |sum, r| r.parameters.as_ref().map(|n| &sum + n));
        let cells: Vec<[String; 4]> = rows
            .into_iter()
            .filter(|r| r.depth <= MAX_DEPTH)
            .map(|r| {
                let name = format!("{}{}", "  ".repeat(r.depth - 1), r.path);
                [name, r.class, r.shape, number(r.parameters.as_ref())]
            })
            .collect();
        let head = ["Name", "Layer", "Output shape", "Parameters"];
        let width = |i: usize| {
            let widest = cells.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
            widest.max(head[i].len())
        };
        let widths = [width(0), width(1), width(2), width(3)];
        let line = |row: [&str; 4]| {
            let [a, b, c, d] = row;
            let [wa, wb, wc, wd] = widths;
            format!("{a:wa$}  {b:wb$}  {c:wc$}  {d:>wd$}").trim_end().to_owned()
        };
        let rule = "-".repeat(widths.iter().sum::<usize>() + 6);
        let mut lines = vec![self.to_string(), line(head), rule.clone()];
        lines.extend(cells.iter().map(|row| line([&row[0], &row[1], &row[2], &row[3]])));
        lines.push(rule);
        lines.push(format!("Parameters: {}", number(total.as_ref())));
        lines.join("\n")
    }
}

/// Learned values of a child that no child before has.
fn count(c: &Composite, child: u32, counted: &mut [bool]) -> Option<Dim> {
    let mut sum = Dim::Const(0);
    for &e in c.ports() {
        let edge = c.edge(e);
        let reads = edge.users.iter().any(|(user, _)| *user == child);
        if !reads || edge.role() != Role::Param || std::mem::replace(&mut counted[e.index()], true) {
            continue;
        }
        let shape = c.solver.shape(edge.slot).to_shape()?;
        if shape.iter().any(Dim::has_var) {
            return None;
        }
        sum = &sum + &shape.numel();
    }
    Some(sum)
}

/// `1,234,567`; `?` if not known.
fn number(n: Option<&Dim>) -> String {
    let Some(n) = n else { return "?".into() };
    let Some(n) = n.known() else { return n.to_string() };
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
