//! The table of a model: parts, what they are, shapes and numbers of parameters; as text, and as a tree of HTML.

use std::fmt::Write as _;

use mithril_ir::{Code, Dim, Result, Role};

use crate::flatten::{FlattenOptions, rows};
use crate::model::{Composite, Model};

/// Parts are listed this deep.
const MAX_DEPTH: usize = 3;
/// The tree of HTML shows this many: a notebook keeps what it shows.
const MAX_ROWS: usize = 2000;

/// A part of a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// Path in the model, whose names are separated by dots.
    pub path: String,
    /// 1 for the parts of the model itself.
    pub depth: usize,
    /// The layer, op or model that it is.
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

    /// The parts of the table, with shapes as far as the model knows them; parts of parts follow them.
    ///
    /// ```
    /// use mithril_ir::Place;
    /// use mithril_model::{Model, layers};
    ///
    /// let mut model = Model::new();
    /// model.extend(&layers::linear(2, true)?, [("input", "input")], Place::default())?;
    /// let rows = model.summary_rows();
    /// assert_eq!((rows[0].path.as_str(), rows[0].class.as_str()), ("linear", "Linear"));
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    pub fn summary_rows(&self) -> Vec<Row> {
        self.summary_rows_with(&FlattenOptions::default()).unwrap_or_else(|_| self.known_rows())
    }
    /// The parts of the table, with what is known when compiling.
    ///
    /// # Errors
    ///
    /// As for compiling; unknown shapes are none.
    pub fn summary_rows_with(&self, options: &FlattenOptions) -> Result<Vec<Row>> {
        match rows(self, options) {
            Err(e) if matches!(e.code(), Code::UnknownShape | Code::EmptyModel) => Ok(self.known_rows()),
            other => other,
        }
    }
    /// The table as a tree of HTML whose parts open and close, for notebooks; it needs neither scripts nor styles.
    ///
    /// ```
    /// use mithril_ir::Place;
    /// use mithril_model::{Model, layers};
    ///
    /// let mut model = Model::new();
    /// let layer = layers::linear(2, true)?.named("<script>")?;
    /// model.extend(&layer, [("input", "input")], Place::default())?;
    /// assert!(model.summary_html().contains("<b>&lt;script&gt;</b>"));
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    pub fn summary_html(&self) -> String {
        self.tree(&self.summary_rows())
    }
    /// The tree of HTML, with what is known when compiling.
    ///
    /// # Errors
    ///
    /// As for compiling; unknown shapes are none.
    pub fn summary_html_with(&self, options: &FlattenOptions) -> Result<String> {
        Ok(self.tree(&self.summary_rows_with(options)?))
    }

    /// Nested lists: a part with parts is `details`, closed from the second level on.
    fn tree(&self, rows: &[Row]) -> String {
        let mut out = String::from("<div style=\"font-family:ui-monospace,monospace;font-size:13px\">");
        let total = number(total(rows).as_ref());
        let _ = write!(out, "<b>{}</b><div>{total} parameters</div>", escaped(&self.to_string()));
        let shown = rows.len().min(MAX_ROWS);
        // Depths of the parts that are open; a name with dots skips some.
        let mut open: Vec<usize> = Vec::new();
        for (i, row) in rows[..shown].iter().enumerate() {
            while open.pop_if(|depth| *depth >= row.depth).is_some() {
                out.push_str("</div></details>");
            }
            let name = row.path.rsplit('.').next().unwrap_or(&row.path);
            let amount = match row.parameters.as_ref() {
                Some(n) if n.known() == Some(0) => String::new(),
                n => format!(" · {} parameters", number(n)),
            };
            let line = format!(
                "<b>{}</b> <span style=\"color:#667085\">{}</span> {}{}",
                escaped(name),
                escaped(&row.class),
                escaped(&row.shape),
                escaped(&amount)
            );
            if rows[..shown].get(i + 1).is_some_and(|next| next.depth > row.depth) {
                let _ = write!(out, "<details><summary>{line}</summary><div style=\"margin-left:1.5em\">");
                open.push(row.depth);
            } else {
                let _ = write!(out, "<div>{line}</div>");
            }
        }
        out.push_str(&"</div></details>".repeat(open.len()));
        if shown < rows.len() {
            let _ = write!(out, "<div>… and {} more parts</div>", rows.len() - shown);
        }
        out.push_str("</div>");
        out
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
        let total = total(&rows);
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

/// Number of learned values of all parts; `None` if that of one is not known.
fn total(rows: &[Row]) -> Option<Dim> {
    rows.iter()
        .filter(|r| r.depth == 1)
        .try_fold(Dim::Const(0), |sum, r| r.parameters.as_ref().map(|n| &sum + n))
}

/// A text as HTML shows it, also inside of attributes; names are the user's.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#x27;"),
            _ => out.push(c),
        }
    }
    out
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
