//! Looks for the layout of the shortest step that fits in memory.
//!
//! A candidate says for every axis of the mesh which axis of the data it divides, and which axis of the parameters of
//! each group ([`super::groups`]). It is partitioned and costed as it would run, equal layers once ([`super::repeats`]). First the known strategies are tried on
//! each axis, in all combinations on meshes of up to two axes. From the best of them, and the best that leaves the
//! parameters whole along some axis, one group at a time is divided in another way as long as that is better
//! (coordinate descent). The order is fixed, and so is the result.

use std::rc::Rc;

use mithril_ir::DType;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Def, Graph, Role};

use super::axis::AxisPass;
use super::cost::{Hardware, weighted_estimate};
use super::experts::is_of_experts;
use super::groups::groups;
use super::memo::Memo;
use super::memory::weighted_memory;
use super::mesh::{Layout, Mesh, Spec, matches};
use super::pass::partition_weighted;
use super::repeats::{Shortened, shorten};
use super::request::requested;
use super::rule::Placement;
use super::seams::sectioned;
use crate::compiled::gradient_of;

/// What a training step does beside the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Training {
    /// Bytes that the optimizer keeps for each byte of a parameter.
    pub slots: f64,
}

/// A layout that was looked at.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The strategy along each axis of the mesh.
    pub name: String,
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes on a device.
    pub memory: u64,
    /// Whether they fit.
    pub fits: bool,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// The layout.
    pub layout: Layout,
    /// The known strategies, in the order in which they were tried; the layout itself last.
    pub candidates: Vec<Candidate>,
    /// How many layouts were partitioned and costed.
    pub evaluated: usize,
}

/// How one axis of the mesh divides the inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Division {
    /// The axis of all data.
    data: Option<usize>,
    /// The axis of the parameters of each group.
    groups: Vec<Option<usize>>,
}

/// By how much of its time a layout has to be faster than one that divides less.
const MARGIN: f64 = 0.005;

const STRATEGIES: [&str; 7] = [
    "replicated",
    "data_parallel",
    "fully_sharded",
    "tensor_parallel",
    "sequence_parallel",
    "expert_parallel",
    "spatial_parallel",
];

/// The layout of strategies, one for each axis of a mesh.
///
/// # Errors
/// If sizes are not known or do not divide, or a strategy is not known.
pub fn named(graph: &Graph, mesh: &Mesh, names: &[String], float: DType) -> Result<Layout> {
    requested(graph, &Layout::new(mesh.clone()))?;
    let kinds: Option<Vec<usize>> =
        names.iter().map(|name| STRATEGIES.iter().position(|own| own == name)).collect();
    let kinds = kinds.filter(|kinds| kinds.len() == mesh.axes().len());
    let kinds = kinds.ok_or_else(|| Error::internal("strategies that are not known"))?;
    // What they cost is not asked.
    let hardware = Hardware::default();
    let mut search = Search::new(graph, mesh, &hardware, Training::default(), float);
    let divisions = search.divisions(&kinds);
    let last = divisions.iter().filter_map(|division| division.data.filter(|k| *k > 1)).max();
    if let Some(k) = last.filter(|k| *k >= search.image_rank) {
        let axes = search.image_rank;
        let message =
            format!("images are to be divided along axis {k}, and the data has at most {axes} axes");
        return Err(Error::new(Code::BadArgument, message).help(
            "spatial_parallel divides the third axis of images, volumes or signals, on further axes of the mesh the next ones: \
             choose another strategy",
        ));
    }
    search.explore()?;
    search.layout(&search.divisions(&kinds))
}

/// Finds the layout over a mesh; if none fits in memory, the one that needs the least, which the last candidate says.
///
/// # Errors
/// If sizes are not known.
pub fn search(
    graph: &Graph,
    mesh: &Mesh,
    hardware: &Hardware,
    training: Training,
    float: DType,
) -> Result<Found> {
    // Says which sizes are missing.
    requested(graph, &Layout::new(mesh.clone()))?;
    let mut search = Search::new(graph, mesh, hardware, training, float);
    search.explore()?;
    let starts = search.strategies()?;
    let all: Vec<usize> = (0..starts.len()).collect();
    let is_whole = |at: &usize| starts[*at].0.iter().any(|axis| axis.groups.iter().all(Option::is_none));
    let whole: Vec<usize> = all.iter().copied().filter(is_whole).collect();
    // Those that divide less come first.
    let best_of = |some: &[usize]| {
        some.iter()
            .copied()
            .reduce(|best, at| if starts[at].1.is_better(&starts[best].1) { at } else { best })
    };
    let Some(first) = best_of(&all) else { return Err(Error::internal("a mesh without layouts")) };
    let second = best_of(&whole).filter(|&second| second != first);
    let mut best: Option<(Vec<Division>, Cost)> = None;
    for at in std::iter::once(first).chain(second) {
        let local = search.descend(starts[at].0.clone(), starts[at].1)?;
        if best.as_ref().is_none_or(|(_, cost)| local.1.is_better(cost)) {
            best = Some(local);
        }
    }
    let Some((choice, cost)) = best else { return Err(Error::internal("a search without a result")) };
    let layout = search.layout(&choice)?;
    let mut candidates = search.candidates;
    candidates.push(Candidate { name: "chosen".into(), ..candidate(&cost) });
    Ok(Found { layout, candidates, evaluated: search.evaluated })
}

fn candidate(cost: &Cost) -> Candidate {
    Candidate { name: String::new(), seconds: cost.seconds, memory: cost.memory, fits: cost.excess == 0 }
}

/// What a candidate costs.
#[derive(Clone, Copy, Debug)]
struct Cost {
    excess: u64,
    seconds: f64,
    memory: u64,
}

impl Cost {
    fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let rest = self.seconds.total_cmp(&other.seconds).then(self.memory.cmp(&other.memory));
        self.excess.cmp(&other.excess).then(rest)
    }
    /// What is faster by less than the estimate can tell is not worth dividing more.
    fn is_better(&self, other: &Self) -> bool {
        match self.excess.cmp(&other.excess) {
            std::cmp::Ordering::Equal => self.seconds < other.seconds * (1.0 - MARGIN),
            order => order.is_lt(),
        }
    }
}

/// The program after an axis of the mesh, with what divided it.
type Prefix = (Division, Rc<(Graph, Vec<u32>)>);

struct Search<'a> {
    graph: &'a Graph,
    /// What is costed in its place: equal layers once.
    short: Shortened,
    mesh: &'a Mesh,
    hardware: &'a Hardware,
    training: Training,
    float: DType,
    groups: Vec<Vec<usize>>,
    /// Which of them are parameters of experts.
    experts: Vec<bool>,
    /// First sizes of the data.
    batches: Vec<usize>,
    /// How many axes the data with the most of them has.
    image_rank: usize,
    memo: Memo,
    /// For each axis of the mesh how it divides the groups if ops decide that one after another.
    explored: Vec<Vec<Option<usize>>>,
    prefixes: Vec<Option<Prefix>>,
    candidates: Vec<Candidate>,
    evaluated: usize,
}

impl<'a> Search<'a> {
    fn new(
        graph: &'a Graph,
        mesh: &'a Mesh,
        hardware: &'a Hardware,
        training: Training,
        float: DType,
    ) -> Self {
        let batches = (0..graph.inputs.len())
            .filter(|&i| role(graph, i) == Some(Role::Data))
            .filter_map(|i| sizes(graph, i).first().copied())
            .collect();
        let is_data = |i: &usize| role(graph, *i) == Some(Role::Data);
        let ranks = (0..graph.inputs.len()).filter(is_data).map(|i| sizes(graph, i).len());
        let image_rank = ranks.max().unwrap_or(0);
        let groups = groups(graph);
        let short = shorten(graph, &groups);
        let experts = groups.iter().map(|group| is_of_experts(graph, group[0])).collect();
        Self {
            graph,
            short,
            mesh,
            hardware,
            training,
            float,
            groups,
            experts,
            batches,
            image_rank,
            memo: Memo::default(),
            explored: Vec::new(),
            prefixes: vec![None; mesh.axes().len()],
            candidates: Vec::new(),
            evaluated: 0,
        }
    }

    /// Lets the ops decide along each axis of the mesh how the parameters that they multiply are divided.
    fn explore(&mut self) -> Result<()> {
        let graph = &self.short.graph;
        let members = |group: &Vec<usize>| -> Vec<usize> {
            let is_member = |(_, i): &(usize, &usize)| group.contains(i);
            self.short.inputs.iter().enumerate().filter(is_member).map(|(at, _)| at).collect()
        };
        let groups: Vec<Vec<usize>> = self.groups.iter().map(members).collect();
        for (name, devices) in self.mesh.axes() {
            let pass = AxisPass::new(graph, name, *devices, self.float, &self.memo);
            let places = pass.explore(&groups)?;
            self.explored.push(places.iter().map(|place| place.and_then(Placement::axis)).collect());
        }
        Ok(())
    }

    /// Every known strategy along every axis, with its cost.
    fn strategies(&mut self) -> Result<Vec<(Vec<Division>, Cost)>> {
        let axes = self.mesh.axes().len();
        let has_windows = self.graph.nodes().any(|(_, node)| node.op.on_rows.is_some());
        let is_there = |name: &str| match name {
            "expert_parallel" => self.experts.contains(&true),
            "spatial_parallel" => has_windows && self.image_rank > 2,
            _ => true,
        };
        let known: Vec<usize> = (0..STRATEGIES.len()).filter(|&kind| is_there(STRATEGIES[kind])).collect();
        let count = known.len();
        let mut tried: Vec<(Vec<usize>, Cost)> = Vec::new();
        if axes <= 2 {
            for number in 0..count.pow(axes as u32) {
                let (mut rest, mut kinds) = (number, vec![0; axes]);
                for kind in kinds.iter_mut().rev() {
                    *kind = known[rest % count];
                    rest /= count;
                }
                self.attempt(kinds, &mut tried)?;
            }
        } else {
            // One axis after the other, the rest as it was best so far.
            let mut best = vec![0; axes];
            self.attempt(best.clone(), &mut tried)?;
            for axis in 0..axes {
                for &kind in &known[1..] {
                    let mut kinds = best.clone();
                    kinds[axis] = kind;
                    self.attempt(kinds, &mut tried)?;
                }
                if let Some((kinds, _)) = tried.iter().min_by(|a, b| a.1.compare(&b.1)) {
                    best.clone_from(kinds);
                }
            }
        }
        Ok(tried.into_iter().map(|(kinds, cost)| (self.divisions(&kinds), cost)).collect())
    }

    fn attempt(&mut self, kinds: Vec<usize>, tried: &mut Vec<(Vec<usize>, Cost)>) -> Result<()> {
        let divisions = self.divisions(&kinds);
        let Some(cost) = self.cost(&divisions)? else { return Ok(()) };
        let names = self.mesh.axes().iter().zip(&kinds);
        let name: Vec<String> =
            names.map(|((axis, _), &kind)| format!("{axis}: {}", STRATEGIES[kind])).collect();
        self.candidates.push(Candidate { name: name.join(", "), ..candidate(&cost) });
        tried.push((kinds, cost));
        Ok(())
    }

    fn divisions(&self, kinds: &[usize]) -> Vec<Division> {
        let mut all: Vec<Division> = Vec::new();
        for (axis, kind) in kinds.iter().enumerate() {
            let data = match STRATEGIES[*kind] {
                "data_parallel" | "fully_sharded" => Some(0),
                "sequence_parallel" => Some(1),
                "spatial_parallel" => {
                    let before = kinds[..axis].iter().filter(|other| *other == kind).count();
                    Some(2 + before)
                }
                _ => None,
            };
            let groups = match STRATEGIES[*kind] {
                "tensor_parallel" if !self.explored.is_empty() => self.explored[axis].clone(),
                "expert_parallel" => self.experts.iter().map(|is_there| is_there.then_some(0)).collect(),
                _ => vec![None; self.groups.len()],
            };
            all.push(Division { data, groups });
        }
        // What is divided for its memory alone takes the axes that are left.
        for (axis, _) in kinds.iter().enumerate().filter(|(_, kind)| STRATEGIES[**kind] == "fully_sharded") {
            for g in 0..self.groups.len() {
                all[axis].groups[g] = self.longest(&all, axis, g);
            }
        }
        all
    }

    /// The longest axis of a group that divides, if it has two or more; what other axes of the mesh divide counts as it
    /// is.
    fn longest(&self, all: &[Division], axis: usize, group: usize) -> Option<usize> {
        let mut left = sizes(self.graph, self.groups[group][0]);
        if left.len() < 2 {
            return None;
        }
        for (_, (division, (_, devices))) in
            all.iter().zip(self.mesh.axes()).enumerate().filter(|(other, _)| *other != axis)
        {
            if let Some(k) = division.groups[group].filter(|&k| left[k].is_multiple_of(*devices)) {
                left[k] /= devices;
            }
        }
        let devices = self.mesh.axes()[axis].1;
        let fitting = (0..left.len()).rev().filter(|&k| left[k] > 0 && left[k].is_multiple_of(devices));
        fitting.max_by_key(|&k| left[k])
    }

    /// Divides one group at a time in another way, as long as that is better.
    fn descend(&mut self, mut at: Vec<Division>, mut cost: Cost) -> Result<(Vec<Division>, Cost)> {
        for _ in 0..3 {
            let mut changed = false;
            // The last axis first: what the others have made of the graph is kept.
            for axis in (0..at.len()).rev() {
                for group in 0..self.groups.len() {
                    let rank = sizes(self.graph, self.groups[group][0]).len();
                    for option in std::iter::once(None).chain((0..rank).map(Some)) {
                        if at[axis].groups[group] == option {
                            continue;
                        }
                        let mut other = at.clone();
                        other[axis].groups[group] = option;
                        if let Some(other_cost) = self.cost(&other)?
                            && other_cost.is_better(&cost)
                        {
                            (at, cost, changed) = (other, other_cost, true);
                        }
                    }
                }
            }
            if !changed {
                break;
            }
        }
        Ok((at, cost))
    }

    /// What a candidate costs; `None` if sizes do not divide.
    fn cost(&mut self, divisions: &[Division]) -> Result<Option<Cost>> {
        let Ok(places) = self.places(divisions) else { return Ok(None) };
        let owner = |name: &str| gradient_of(name).map(ToOwned::to_owned);
        let mut fresh = false;
        for (axis, (name, devices)) in self.mesh.axes().iter().enumerate() {
            fresh = fresh || self.prefixes[axis].as_ref().is_none_or(|(known, _)| *known != divisions[axis]);
            if !fresh {
                continue;
            }
            let before = match axis.checked_sub(1).and_then(|i| self.prefixes[i].as_ref()) {
                Some((_, graph)) => Rc::clone(graph),
                None => Rc::new((self.short.graph.clone(), self.short.weights.clone())),
            };
            let own: Vec<Placement> = self.short.inputs.iter().map(|&i| places[i][axis]).collect();
            let (graph, weights) = &*before;
            let (float, memo) = (self.float, &self.memo);
            let own = sectioned(graph, &own, *devices, memo);
            let (graph, _, weights) =
                partition_weighted(graph, weights, name, *devices, float, &own, &owner, memo)?;
            self.prefixes[axis] = Some((divisions[axis].clone(), Rc::new((graph, weights))));
        }
        self.evaluated += 1;
        let Some((_, last)) = self.prefixes.last().and_then(Option::as_ref) else { return Ok(None) };
        let (graph, weights) = &**last;
        let estimate = weighted_estimate(graph, weights, self.mesh, self.hardware, &self.memo);
        let held = weighted_memory(graph, weights, &self.short.copies);
        let slots = (held.parameters as f64 * self.training.slots) as u64;
        let memory = held.parameters + held.states + held.data + held.gradients + held.activations + slots;
        let update = if held.gradients > 0 && self.training.slots >= 0.0 {
            (2 * held.parameters + held.gradients + 2 * slots) as f64 / self.hardware.bandwidth
        } else {
            0.0
        };
        let excess = memory.saturating_sub(self.hardware.memory);
        Ok(Some(Cost { excess, seconds: estimate.seconds() + update, memory }))
    }

    /// Where the inputs lie.
    ///
    /// # Errors
    /// If a size does not divide.
    fn places(&self, divisions: &[Division]) -> Result<Vec<Vec<Placement>>> {
        let mut places = vec![vec![Placement::Replicate; divisions.len()]; self.graph.inputs.len()];
        let mut left: Vec<Vec<usize>> = (0..self.graph.inputs.len()).map(|i| sizes(self.graph, i)).collect();
        for (axis, (division, (along, devices))) in divisions.iter().zip(self.mesh.axes()).enumerate() {
            let mut divide = |i: usize, k: usize| {
                let fitting = left[i].get_mut(k).filter(|size| **size > 0 && size.is_multiple_of(*devices));
                let Some(size) = fitting else { return Err(self.indivisible(i, k, along, *devices)) };
                *size /= devices;
                places[i][axis] = Placement::Shard(k);
                Ok(())
            };
            if let Some(k) = division.data {
                for i in 0..self.graph.inputs.len() {
                    let own = sizes(self.graph, i);
                    let is_divided = match role(self.graph, i) {
                        // Labels of pixels have other axes; what is whole is cut where images need it.
                        Some(Role::Data) => own.len() > k && (k < 2 || own.len() == self.image_rank),
                        Some(Role::Cotangent) => {
                            k == 0 && own.first().is_some_and(|size| self.batches.contains(size))
                        }
                        _ => false,
                    };
                    if is_divided {
                        divide(i, k)?;
                    }
                }
            }
            for (group, k) in self.groups.iter().zip(&division.groups) {
                for &i in group {
                    if let Some(k) = k {
                        divide(i, *k)?;
                    }
                }
            }
        }
        Ok(places)
    }

    fn indivisible(&self, input: usize, k: usize, along: &str, devices: usize) -> Error {
        let value = self.graph.value(self.graph.inputs[input]);
        let (name, ty) = (value.name.as_deref().unwrap_or("input"), value.ty.as_ref());
        let ty = ty.map_or_else(String::new, |ty| format!(", {ty},"));
        let message =
            format!("axis {k} of `{name}`{ty} does not divide among {devices} devices along `{along}`");
        Error::new(Code::BadArgument, message)
            .help(format!("make its size a multiple of {devices}, or choose another strategy for `{along}`"))
    }

    /// The layout that a user writes for these divisions.
    #[expect(clippy::too_many_lines, reason = "one text after the other, with what they share")]
    fn layout(&self, divisions: &[Division]) -> Result<Layout> {
        let places = self.places(divisions)?;
        let names = |holds: &dyn Fn(&Division) -> bool| -> Vec<String> {
            let all = divisions.iter().zip(self.mesh.axes());
            all.filter(|(division, _)| holds(division)).map(|(_, (name, _))| name.clone()).collect()
        };
        let batch = names(&|division| division.data == Some(0));
        let divided = names(&|division| division.groups.iter().any(Option::is_some));
        let mut layout = Layout { batch, ..Layout::new(self.mesh.clone()) };
        // The short form, if it says the same.
        for parameters in [Vec::new(), divided] {
            let short = Layout { parameters, ..layout.clone() };
            if requested(self.graph, &short).is_ok_and(|own| own == places) {
                return Ok(short);
            }
        }
        let spec = |i: usize| -> Spec {
            let mut spec: Spec = vec![Vec::new(); sizes(self.graph, i).len()];
            for (place, (name, _)) in places[i].iter().zip(self.mesh.axes()) {
                if let Placement::Shard(k) = place {
                    spec[*k].push(name.clone());
                }
            }
            while spec.last().is_some_and(Vec::is_empty) {
                spec.pop();
            }
            spec
        };
        let name = |i: usize| self.graph.value(self.graph.inputs[i]).name.as_deref().unwrap_or("");
        let inputs: Vec<(&str, Spec)> = (0..self.graph.inputs.len()).map(|i| (name(i), spec(i))).collect();
        let any = |own: &str| -> String {
            let parts = own.split('.');
            let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
            parts.map(|part| if digits(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
        };
        let is_said = |i: usize| {
            role(self.graph, i) == Some(Role::Cotangent)
                || role(self.graph, i) == Some(Role::Data)
                    && divisions.iter().all(|d| d.data.is_none_or(|k| k == 0))
        };
        // A pattern says what most of its kind have; others come in front of it.
        let mut kinds: Vec<(String, Vec<(&str, &Spec)>)> = Vec::new();
        for (_, (own, spec)) in inputs.iter().enumerate().filter(|(i, _)| !is_said(*i)) {
            let pattern = any(own);
            match kinds.iter_mut().find(|(known, _)| *known == pattern) {
                Some((_, members)) => members.push((own, spec)),
                None => kinds.push((pattern, vec![(own, spec)])),
            }
        }
        let mut general = Vec::new();
        for (pattern, members) in &kinds {
            let count = |spec: &Spec| members.iter().filter(|(_, own)| *own == spec).count();
            let Some((_, most)) = members.iter().rev().max_by_key(|(_, spec)| count(spec)) else { continue };
            let others = members.iter().filter(|(_, spec)| spec != most);
            layout.patterns.extend(others.map(|(own, spec)| ((*own).to_owned(), (*spec).clone())));
            if !most.is_empty() || members.iter().any(|(_, spec)| spec != most) {
                general.push((pattern.clone(), (*most).clone()));
            }
        }
        // Another pattern may say more than it is meant to.
        for (_, (own, spec)) in inputs.iter().enumerate().filter(|(i, _)| !is_said(*i)) {
            let all = layout.patterns.iter().chain(&general);
            let said = all.clone().find(|(pattern, _)| matches(pattern, own)).map(|(_, spec)| spec);
            if said.is_some_and(|said| said != spec) {
                layout.patterns.push(((*own).to_owned(), spec.clone()));
            }
        }
        layout.patterns.extend(general);
        Ok(layout)
    }
}

fn role(graph: &Graph, input: usize) -> Option<Role> {
    match graph.value(graph.inputs[input]).def {
        Def::Input(role) => Some(role),
        _ => None,
    }
}

fn sizes(graph: &Graph, input: usize) -> Vec<usize> {
    graph.ty(graph.inputs[input]).and_then(|ty| ty.shape.known()).unwrap_or_default()
}
