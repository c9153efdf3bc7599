//! Meshes of devices, and which axes of tensors are divided along which axes of a mesh.

use std::fmt;

use mithril_ir::error::{Code, Error, Result, nearest};

/// Devices in a grid whose axes have names, e.g. `data=2, model=4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    axes: Vec<(String, usize)>,
}

impl Mesh {
    /// A mesh with these axes, the outermost first.
    ///
    /// ```
    /// use mithril_compile::partition::Mesh;
    ///
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// assert_eq!(mesh.devices(), 8);
    /// assert_eq!(mesh.coordinates(5), [1, 1]);
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no axis, two have one name, a size is 0, or there are more than 2³¹ devices.
    pub fn new(axes: impl IntoIterator<Item = (impl Into<String>, usize)>) -> Result<Self> {
        let axes: Vec<(String, usize)> = axes.into_iter().map(|(name, size)| (name.into(), size)).collect();
        let bad = |message: String, help: &str| Err(Error::new(Code::BadArgument, message).help(help));
        if axes.is_empty() {
            return bad("a mesh without axes".into(), "name at least one axis and its size: data=2");
        }
        for (i, (name, size)) in axes.iter().enumerate() {
            if *size == 0 {
                return bad(format!("axis `{name}` of the mesh has size 0"), "its size must be at least 1");
            }
            if axes[..i].iter().any(|(other, _)| other == name) {
                return bad(
                    format!("two axes of the mesh are called `{name}`"),
                    "give each a name of its own",
                );
            }
        }
        let devices = axes.iter().try_fold(1_usize, |n, (_, size)| n.checked_mul(*size));
        if devices.is_none_or(|n| n > 1 << 31) {
            return bad("a mesh of more than 2147483648 devices".into(), "make its axes smaller");
        }
        Ok(Self { axes })
    }
    /// Names and sizes of the axes.
    pub fn axes(&self) -> &[(String, usize)] {
        &self.axes
    }
    /// Number of devices.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }
    /// Where a device lies, by axis; devices are counted with the last axis running fastest.
    pub fn coordinates(&self, device: usize) -> Vec<usize> {
        let mut rest = device;
        let mut at: Vec<usize> = self
            .axes
            .iter()
            .rev()
            .map(|(_, size)| {
                let i = rest % size;
                rest /= size;
                i
            })
            .collect();
        at.reverse();
        at
    }
    /// The position of an axis.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn axis(&self, name: &str) -> Result<usize> {
        self.axes.iter().position(|(own, _)| own == name).ok_or_else(|| {
            let names = || self.axes.iter().map(|(own, _)| own.as_str());
            let error = Error::new(Code::BadArgument, format!("the mesh ({self}) has no axis `{name}`"));
            match nearest(name, names()) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help(format!("its axes are {}", names().collect::<Vec<_>>().join(", "))),
            }
        })
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        f.write_str(&axes.join(", "))
    }
}

/// The axes of a tensor that are divided: for each axis the names of the axes of the mesh, none where it is whole.
pub type Spec = Vec<Vec<String>>;

/// Which axes of the inputs of a graph are divided along which axes of a mesh. What no pattern names is replicated.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The devices.
    pub mesh: Mesh,
    /// The axes of the mesh along which the first axis of every data input is divided.
    pub batch: Vec<String>,
    /// The axes of the mesh along which the second axis of every data input is divided.
    pub sequence: Vec<String>,
    /// Patterns of input names (`*` stands for any text), and how they are divided; the first that fits holds.
    pub patterns: Vec<(String, Spec)>,
    /// The axes of the mesh along which parameters that no pattern names are divided, if they have two axes or more: each
    /// along its longest axis that divides.
    pub parameters: Vec<String>,
    /// The axes of the mesh along which the parameters of experts that no pattern names are divided, expert by expert.
    pub experts: Vec<String>,
    /// Whether fused weights are divided within their parts, as long as whoever runs the program can do so.
    pub divides_sections: bool,
}

impl Layout {
    /// The layout that replicates everything.
    pub fn new(mesh: Mesh) -> Self {
        let (batch, sequence, parameters, experts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { mesh, batch, sequence, patterns: Vec::new(), parameters, experts, divides_sections: true }
    }
    /// How an input of that name is divided, if a pattern says so.
    pub fn spec(&self, name: &str) -> Option<&Spec> {
        self.patterns.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, spec)| spec)
    }
}

/// Whether a pattern with `*` fits a name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_names() {
        assert!(matches("*.attn.*.weight", "h.0.attn.q.weight"));
        assert!(matches("weight", "weight") && !matches("weight", "weights"));
        assert!(matches("*", "") && matches("a*b*c", "axxbyyc") && !matches("a*b*c", "ac"));
        assert!(!matches("ab*ba", "aba"));
    }

    #[test]
    fn meshes_that_cannot_be() {
        assert!(Mesh::new(Vec::<(&str, usize)>::new()).is_err());
        assert!(Mesh::new([("a", 0)]).is_err());
        assert!(Mesh::new([("a", 2), ("a", 2)]).is_err());
        assert!(Mesh::new([("a", usize::MAX), ("b", 2)]).is_err());
        let error = Mesh::new([("data", 2)]).unwrap().axis("dat").unwrap_err();
        assert_eq!(error.hint(), Some("did you mean `data`?"));
    }
}
