//! Programs that are wrong in one way each: the verifier has to say what is wrong. The same without the mistake passes.

use std::collections::BTreeMap;

use mithril_ir::DType;

use crate::c::ir::driver::{Does, Effect, Line, Phase, Statement};
use crate::c::ir::expr::{
    Argument as CallArgument, BufferId, Call as Function, Expr, Index, ReduceOp, StepId, Var, Within,
};
use crate::c::ir::kernel::{Argument, Call, Kernel};
use crate::c::ir::layout::Blocks;
use crate::c::ir::program::{
    KernelBuffer, KernelCall, KernelMemory, KernelPlace, KernelProgram, KernelStep, KernelWork, Nest,
    PackCall, Parts, Place, Rows,
};
use crate::c::verify::values::Values;
use crate::c::verify::{bounds, emitted, order};
use crate::ids::{Id as _, InputId, OutputId};

const F32: DType = DType::F32;

fn buffer(name: &str, shape: &[i64], place: KernelPlace) -> KernelBuffer {
    KernelBuffer {
        name: name.to_owned(),
        dtype: F32,
        shape: shape.to_vec(),
        place,
        is_param: false,
        blocks: None,
    }
}

/// An input, temporaries and an output, all of them vectors of 8: x0 … x3.
fn vectors() -> Vec<KernelBuffer> {
    vec![
        buffer("input", &[8], Place::Input(InputId::new(0))),
        buffer("first", &[8], Place::Memory(KernelMemory::Arena(None))),
        buffer("second", &[8], Place::Memory(KernelMemory::Arena(None))),
        buffer("output", &[8], Place::Output(OutputId::new(0))),
    ]
}

fn state(output: usize) -> KernelPlace {
    Place::State { input: InputId::new(0), output: OutputId::new(output) }
}

fn var(id: u32, size: i64) -> Var {
    Var { id, size }
}

fn load(from: usize, at: &[Index]) -> Expr {
    Expr::Load { from: x(from), at: at.to_vec(), stored: F32 }
}

fn x(number: usize) -> BufferId {
    BufferId::new(number)
}

fn step(name: &str, work: KernelWork) -> KernelStep {
    KernelStep { name: name.to_owned(), origin: String::new(), work }
}

/// `to[i] = from[i]` for 8 elements, plus itself so that it is not a copy.
fn fill(to: usize, from: usize) -> KernelStep {
    let v = var(to as u32, 8);
    let value = load(from, &[Index::var(v)]) + load(from, &[Index::var(v)]);
    step(&format!("fill {to}"), KernelWork::Nest(Nest { to: x(to), vars: vec![v], value }))
}

fn program(buffers: Vec<KernelBuffer>, steps: Vec<KernelStep>) -> KernelProgram {
    KernelProgram { buffers: buffers.into(), steps: steps.into(), next_var: 100, ..KernelProgram::default() }
}

fn call(arguments: &[Argument]) -> Call {
    Call { function: "kernel".to_owned(), arguments: arguments.to_vec() }
}

/// A kernel that packs its second factor when it runs, and then multiplies.
fn product(to: usize, inputs: [usize; 2], shared: usize) -> KernelCall {
    let pack = call(&[Argument::Thread, Argument::B, Argument::Shared]);
    let multiply = call(&[Argument::Thread, Argument::A, Argument::Shared, Argument::Out]);
    let kernel = Kernel {
        pack: None,
        packed_bytes: 0,
        panel_start: None,
        phases: vec![vec![pack], vec![multiply]],
        shared_bytes: 64,
        scratch_bytes: 64,
    };
    KernelCall {
        kernel,
        to: x(to),
        inputs: inputs.map(|b| (x(b), 0)),
        operands: Vec::new(),
        packed: 0,
        next_weights: None,
        shared: Some(x(shared)),
        what: "4x4x4 product".to_owned(),
        work: 64,
        tuning_keys: Vec::new(),
    }
}

/// Both checks of one program.
fn check(program: &KernelProgram) -> Result<(), String> {
    bounds::check(program).and_then(|()| order::check(program))
}

#[track_caller]
fn fails(result: Result<(), String>, parts: &[&str]) {
    let text = result.expect_err("the program is wrong");
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[track_caller]
fn refuses(program: &KernelProgram, parts: &[&str]) {
    fails(check(program), parts);
}

#[test]
fn steps_in_order() {
    check(&program(vectors(), vec![fill(1, 0), fill(2, 1), fill(3, 2)])).expect("is right");
    let text = program(vectors(), vec![fill(2, 1), fill(1, 0), fill(3, 2)]);
    refuses(&text, &["step 0, `fill 2`", "reads x1 `first` [8] before it is written"]);
    // The step that made it is gone.
    refuses(&program(vectors(), vec![fill(2, 1), fill(3, 2)]), &["reads x1 `first`"]);
    refuses(&program(vectors(), vec![fill(1, 0)]), &["no step fills the output x3 `output`"]);
    let mut changes = program(vectors(), vec![fill(3, 0)]);
    changes.steps.push(fill(0, 3));
    refuses(&changes, &["changes x0 `input`"]);
}

/// `output[i] = input[index]`, with the tests.
fn reads_at(index: impl Fn(Index) -> Index, tests: &[(i64, i64)]) -> KernelProgram {
    let v = var(0, 8);
    let at = index(Index::var(v));
    let when = tests.iter().map(|&(from, to)| Within::new(at.clone(), from, to)).collect();
    let value = load(0, std::slice::from_ref(&at)).within(when, Expr::Number(0.0.into(), F32));
    program(vectors(), vec![step("read", KernelWork::Nest(Nest { to: x(3), vars: vec![v], value }))])
}

#[test]
fn indices_within_shapes() {
    check(&reads_at(|i| i, &[])).expect("is right");
    check(&reads_at(|i| i - Index::number(2), &[(0, i64::MAX)])).expect("the test keeps it inside");
    check(&reads_at(|i| i * 3, &[(0, 8)])).expect("the test keeps it inside");
    check(&reads_at(|i| (i.clone() * 5).modulo(8), &[])).expect("is right");
    refuses(&reads_at(|i| i + Index::number(1), &[]), &["= 8 on an axis of 8 of x0 `input`", "i0 = 7"]);
    refuses(&reads_at(|i| i - Index::number(2), &[]), &["on an axis of 8 of x0"]);
    refuses(&reads_at(|i| i * 2, &[(0, 9)]), &["on an axis of 8"]);
    let inside = |i: Index| (i.clone() * 5).modulo(9);
    refuses(&reads_at(inside, &[]), &["on an axis of 8"]);
    // Also where a reduction reads.
    let (v, summed) = (var(0, 8), var(7, 8));
    let sums = |index: Index| {
        let body = Box::new(load(0, &[index]));
        let value = Expr::Reduce { op: ReduceOp::Sum, vars: vec![summed], body };
        let nest = Nest { to: x(3), vars: vec![v], value };
        program(vectors(), vec![step("sum", KernelWork::Nest(nest))])
    };
    check(&sums(Index::var(summed))).expect("is right");
    refuses(&sums(Index::var(summed) + Index::number(1)), &["= 8 on an axis of 8 of x0 `input`", "i7 = 7"]);
}

#[test]
fn loops_count_what_indices_use() {
    let (v, other) = (var(0, 8), var(7, 8));
    let with = |vars: Vec<Var>, value: Expr| {
        program(vectors(), vec![step("read", KernelWork::Nest(Nest { to: x(3), vars, value }))])
    };
    refuses(&with(vec![v], load(0, &[Index::var(other)])), &["uses i7, which no loop counts"]);
    let sum = |vars: Vec<Var>| {
        let body = Box::new(load(0, &[Index::var(vars[0])]));
        Expr::Reduce { op: ReduceOp::Sum, vars, body }
    };
    check(&with(vec![v], sum(vec![other]))).expect("is right");
    refuses(&with(vec![v], sum(vec![v])), &["counts with i0 inside of a loop that does"]);
    let half = Expr::Load { from: x(0), at: vec![Index::var(v)], stored: DType::F16 };
    refuses(&with(vec![v], half), &["reads f16 from x0 `input` [8], which holds f32"]);
    refuses(&with(vec![v], load(0, &[])), &["reads at 0 coordinates of x0"]);
}

#[test]
fn nests_fill_their_buffers() {
    let half = |size: i64| {
        let v = var(0, size);
        let nest = Nest { to: x(3), vars: vec![v], value: load(0, &[Index::default()]) };
        program(vectors(), vec![step("fill", KernelWork::Nest(nest))])
    };
    check(&half(8)).expect("is right");
    refuses(&half(4), &["does not fill every element of x3 `output`"]);
    refuses(&half(9), &["stores at 8 on an axis of 8 of x3"]);
}

/// What an element is made of is read while others are changed.
#[test]
fn changes_in_place_read_their_own_element() {
    let state = || {
        let mut buffers = vectors();
        buffers[0].place = state(0);
        buffers.truncate(1);
        buffers
    };
    let v = var(0, 8);
    let change = |at: Index| {
        let value = load(0, std::slice::from_ref(&at)) + load(0, &[at]);
        program(state(), vec![step("change", KernelWork::Nest(Nest { to: x(0), vars: vec![v], value }))])
    };
    check(&change(Index::var(v))).expect("is right");
    refuses(&change(Index::number(7) - Index::var(v)), &["reads x0 `input` [8] while it changes it"]);
    let args = vec![CallArgument::In(x(0)), CallArgument::Out(x(0))];
    let both = KernelWork::Call(Function { function: "mithril_sort".to_owned(), args, scratch: 0 });
    refuses(&program(state(), vec![step("sort", both)]), &["mithril_sort", "while it changes it"]);
}

/// Two nests over 4 rows of 2: `scratch[j] = input[r, j]`, `output[r, j] = scratch[j]`, with scratch memory of a row or of all.
fn rows(order: [usize; 2], own: bool, read: impl Fn(Index) -> Index) -> KernelProgram {
    let mut buffers = vectors();
    for b in [0, 1, 3] {
        buffers[b].shape = vec![4, 2];
    }
    if own {
        buffers[1].shape = vec![2];
        buffers[1].place = Place::Memory(KernelMemory::Scratch(0));
    }
    let row = var(0, 4);
    let [j, k] = [1, 2].map(|id| var(id, 2));
    let local = |row: Index, j: Index| if own { vec![j] } else { vec![row, j] };
    let first = load(0, &[Index::var(row), Index::var(j)]);
    let second = load(1, &local(read(Index::var(row)), Index::var(k)));
    let nests = [
        (Nest { to: x(1), vars: vec![row, j], value: first }, local(Index::var(row), Index::var(j))),
        (Nest { to: x(3), vars: vec![row, k], value: second }, vec![Index::var(row), Index::var(k)]),
    ];
    let nests = order.map(|i| nests[i].clone()).to_vec();
    let work = KernelWork::Rows(Rows { vars: vec![row], part_vars: 0, nests, scratch_bytes: 64 });
    program(buffers, vec![step("rows", work)])
}

#[test]
fn rows_read_what_was_made_in_them() {
    for own in [true, false] {
        check(&rows([0, 1], own, |row| row)).expect("is right");
        refuses(&rows([1, 0], own, |row| row), &["reads x1 `first`", "in a row before it is written there"]);
    }
    let next = |row: Index| (row + Index::number(1)).modulo(4);
    refuses(&rows([0, 1], false, next), &["reads x1 `first` [4, 2] at [", "which another row fills"]);
    // Also where a sum reads.
    let sums = |read: &dyn Fn(Index) -> Index| {
        let mut sums = rows([0, 1], false, |row| row);
        if let KernelWork::Rows(rows) = &mut sums.steps[StepId::new(0)].work {
            let (row, k) = (var(0, 4), var(9, 2));
            let body = Box::new(load(1, &[read(Index::var(row)), Index::var(k)]));
            rows.nests[1].0.value = Expr::Reduce { op: ReduceOp::Sum, vars: vec![k], body };
        }
        sums
    };
    check(&sums(&|row| row)).expect("is right");
    refuses(&sums(&next), &["reads x1 `first` [4, 2] at [", "which another row fills"]);
    // Of the scratch memory of a row nothing is left behind.
    let mut later = rows([0, 1], true, |row| row);
    later.buffers.push(buffer("later", &[2], Place::Output(OutputId::new(1))));
    let v = var(9, 2);
    let nest = Nest { to: x(4), vars: vec![v], value: load(1, &[Index::var(v)]) };
    later.steps.push(step("later", KernelWork::Nest(nest)));
    refuses(&later, &["step 1", "names x1 `first` [2], which only another step has"]);
}

#[test]
fn scratch_memory_is_divided() {
    let mut small = rows([0, 1], true, |row| row);
    small.buffers[x(1)].place = Place::Memory(KernelMemory::Scratch(64));
    refuses(&small, &["keeps x1 `first` [2] at 64 of 64 bytes"]);
    let mut together = rows([0, 1], true, |row| row);
    together.buffers[x(2)].shape = vec![2];
    together.buffers[x(2)].place = Place::Memory(KernelMemory::Scratch(0));
    let KernelWork::Rows(rows) = &mut together.steps[StepId::new(0)].work else { panic!("rows") };
    let (row, v) = (rows.vars[0], var(5, 2));
    let third = Nest { to: x(2), vars: vec![row, v], value: load(1, &[Index::var(v)]) };
    rows.nests.push((third, vec![Index::var(v)]));
    refuses(&together, &["keeps x2 `second` [2] and x1 `first` [2] in one place"]);
}

/// Two products of 4 x 4 in 2 parts, the first into x1, and loops between them into x2: `second = first + first`.
fn parts(inputs: [[usize; 2]; 2]) -> KernelProgram {
    let mut buffers = vectors();
    for b in &mut buffers {
        b.shape = vec![4, 4];
    }
    buffers[1].place = Place::Memory(KernelMemory::Scratch(64));
    buffers[2].place = Place::Memory(KernelMemory::Scratch(128));
    buffers.extend([KernelBuffer::workspace(64), KernelBuffer::workspace(64)]);
    let vars = vec![var(0, 2), var(1, 4), var(2, 4)];
    let at = vec![Index::var(vars[1]), Index::var(vars[2])];
    let value = load(1, &at) + load(1, &at);
    let nest = Nest { to: x(2), vars: vars.clone(), value };
    let rows = Rows { vars: vars[..2].to_vec(), part_vars: 1, nests: vec![(nest, at)], scratch_bytes: 0 };
    let steps = vec![
        step("scores", KernelWork::Kernel(product(1, inputs[0], 4))),
        step("soft", KernelWork::Rows(rows)),
        step("mix", KernelWork::Kernel(product(3, inputs[1], 5))),
    ];
    program(
        buffers,
        vec![step("attention", KernelWork::Parts(Parts { count: 2, steps, scratch_bytes: 192 }))],
    )
}

#[test]
fn parts_pack_what_is_there() {
    check(&parts([[0, 0], [2, 0]])).expect("is right");
    // The second factor of the second product is made in the parts, in front of which it is packed.
    let text = "packs x2 `second` [4, 4] in front of the parts, which fill it";
    refuses(&parts([[0, 0], [0, 2]]), &["step 0, `attention`", "4x4x4 product", text]);
    refuses(&parts([[1, 0], [2, 0]]), &["`scores`", "reads x1 `first` [4, 4]"]);
    // One part reads what another one makes.
    let mut shared = parts([[0, 0], [2, 0]]);
    shared.buffers[x(2)].place = Place::Memory(KernelMemory::Arena(None));
    shared.buffers[x(2)].shape.insert(0, 2);
    let KernelWork::Parts(inside) = &mut shared.steps[StepId::new(0)].work else { panic!("parts") };
    let KernelWork::Rows(rows) = &mut inside.steps[1].work else { panic!("rows") };
    rows.nests[0].1.insert(0, Index::var(rows.vars[0]));
    refuses(&shared, &["`mix`", "reads x2 `second` [2, 4, 4], of which other parts fill some"]);
    let mut scratch = parts([[0, 0], [2, 0]]);
    let KernelWork::Parts(inside) = &mut scratch.steps[StepId::new(0)].work else { panic!("parts") };
    let KernelWork::Kernel(k) = &mut inside.steps[2].work else { panic!("a kernel") };
    k.shared = Some(x(4));
    refuses(&scratch, &["has the scratch memory of another"]);
    let mut more = parts([[0, 0], [2, 0]]);
    let KernelWork::Parts(inside) = &mut more.steps[StepId::new(0)].work else { panic!("parts") };
    inside.count = 3;
    refuses(&more, &["counts 2 of 3 parts"]);
}

#[test]
fn memory_is_not_reused_too_soon() {
    let placed = |places: [usize; 2], steps: Vec<KernelStep>| {
        let mut buffers = vectors();
        buffers[1].place = Place::Memory(KernelMemory::Arena(Some(places[0])));
        buffers[2].place = Place::Memory(KernelMemory::Arena(Some(places[1])));
        program(buffers, steps)
    };
    let steps = || vec![fill(1, 0), fill(2, 0), fill(3, 1)];
    check(&placed([0, 64], steps())).expect("is right");
    refuses(
        &placed([0, 16], steps()),
        &["step 2", "reads x1 `first` [8], whose memory x2 `second` [8] has taken"],
    );
    let steps = vec![fill(1, 0), fill(2, 1), fill(3, 2)];
    refuses(&placed([0, 16], steps), &["writes x2 `second` [8] over x1 `first` [8]"]);
    let mut k = program(vectors(), vec![fill(1, 0)]);
    k.buffers.push(KernelBuffer::workspace(32));
    k.steps.push(step("product", KernelWork::Kernel(product(3, [0, 1], 4))));
    refuses(&k, &["has 32 bytes of scratch memory and needs 64"]);
}

#[test]
fn what_is_done_once_knows_parameters() {
    let mut once = program(vectors(), vec![fill(3, 1)]);
    once.buffers[x(1)].place = Place::Memory(KernelMemory::Packed(None));
    once.prepacking = vec![fill(1, 0)].into();
    refuses(&once, &["done once, names x0 `input` [8], which is not known then"]);
    once.buffers[x(0)].is_param = true;
    check(&once).expect("is right");
    once.steps.insert(StepId::new(0), fill(1, 0));
    refuses(&once, &["changes x1 `first` [8], which is packed"]);
}

#[test]
fn blocks_are_for_those_who_know_them() {
    let mut blocks = program(vectors(), Vec::new());
    blocks.buffers[x(1)].shape = vec![1, 8, 1, 1];
    let halo = [[1, 0], [0, 0]];
    blocks.buffers[x(1)].blocks = Some(Blocks { halo, ..Blocks::of(8) });
    blocks.info.arena_bytes = Some(64);
    refuses(&blocks, &["no function fills the halo of x1"]);
    blocks.info.halos = BTreeMap::from([(x(1), "halo".to_owned())]);
    let args = vec![CallArgument::In(x(0)), CallArgument::Out(x(1))];
    let work = KernelWork::Call(Function { function: "mithril_sort".to_owned(), args, scratch: 0 });
    blocks.steps.push(step("sort", work));
    refuses(&blocks, &["is given x1", "does not lie in row-major order"]);
}

/// An old state is read by another step before it changes.
#[test]
fn steps_read_the_same_values_when_moved() {
    let mut buffers = vectors();
    buffers[0].place = state(1);
    let right = program(buffers.clone(), vec![fill(3, 0), fill(1, 0), fill(0, 1)]);
    let before = Values::of(&right);
    let moved = program(buffers.clone(), vec![fill(1, 0), fill(3, 0), fill(0, 1)]);
    before.check(&moved).expect("says the same");
    let wrong = program(buffers, vec![fill(1, 0), fill(0, 1), fill(3, 0)]);
    check(&wrong).expect("everything is there");
    fails(before.check(&wrong), &["x3 `output` [8] is made of other values than before"]);
}

/// An output that starts as a copy of donated data, which a call then changes, is that data.
#[test]
fn values_that_are_changed_in_place_stay_the_same() {
    let sort = |b: usize| {
        let args = vec![CallArgument::Out(x(b))];
        step("sort", KernelWork::Call(Function { function: "mithril_sort".to_owned(), args, scratch: 0 }))
    };
    let v = var(9, 8);
    let nest = Nest { to: x(3), vars: vec![v], value: load(0, &[Index::var(v)]) };
    let mut beside = program(vectors(), vec![step("copy", KernelWork::Nest(nest)), sort(3)]);
    beside.updates = vec![(x(0), x(3))];
    let mut in_place = KernelProgram { steps: vec![sort(0)].into(), ..beside.clone() };
    in_place.buffers[x(0)].place = state(0);
    in_place.buffers[x(3)].place = Place::Memory(KernelMemory::Arena(None));
    Values::of(&beside).check(&in_place).expect("is the same");
    in_place.steps.push(sort(0));
    fails(Values::of(&beside).check(&in_place), &["x0 `input` [8] is made of other values"]);
}

fn phase(text: &str, reads: &[usize], writes: &[usize], everyone: bool) -> Phase {
    let [reads, writes] = [reads, writes].map(|list| list.iter().map(|&b| x(b)).collect());
    let effect = Effect { reads, writes, ..Effect::default() };
    let calls = vec![Statement::call(text.to_owned(), effect)];
    Phase { title: String::new(), calls, everyone }
}

/// Goes through calls, with waiting where it says so.
fn run(program: &KernelProgram, phases: &[Option<Phase>]) -> Result<(), String> {
    let mut lines = Vec::new();
    for (i, phase) in phases.iter().enumerate() {
        let Some(phase) = phase else {
            lines.push(Line::Wait);
            continue;
        };
        let everyone = phase.everyone;
        let at = (StepId::new(0), i);
        lines.extend(phase.calls.iter().map(|statement| Line::Statement { statement, everyone, at }));
    }
    emitted::packing(program, &[]).and_then(|packed| emitted::running(program, &packed, &lines, true))
}

#[test]
fn threads_wait_for_what_others_make() {
    let first = program(vectors(), vec![fill(1, 0)]);
    let calls = |everyone: bool| [phase("f();", &[0], &[1], everyone), phase("g();", &[1], &[3], everyone)];
    let [f, g] = calls(true).map(Some);
    run(&first, &[f.clone(), None, g.clone()]).expect("is right");
    fails(run(&first, &[f.clone(), g.clone()]), &["`g();`", "does not wait", "x1 `first`"]);
    fails(run(&first, &[g, None, f]), &["`g();`, reads x1 `first` [8] before it is written"]);
    let [f, g] = calls(false).map(Some);
    run(&first, &[f, g]).expect("one thread does both");
    // The second call writes where the first may still read.
    let both = [phase("f();", &[0], &[1], true), phase("h();", &[], &[2], true)].map(Some);
    let mut shared = first.clone();
    shared.buffers[x(1)].place = Place::Memory(KernelMemory::Arena(Some(0)));
    shared.buffers[x(2)].place = Place::Memory(KernelMemory::Arena(Some(0)));
    fails(run(&shared, &both), &["`h();`", "does not wait"]);
}

#[test]
fn parts_are_looped_over_with_what_is_packed() {
    let first = parts([[0, 0], [0, 2]]);
    let mut looped = phase("mix();", &[2, 5], &[3], true);
    let text = |does: Does| Statement { text: String::new(), does };
    let soft = phase("soft();", &[0], &[2], true).calls.remove(0);
    looped.calls.insert(0, soft);
    looped.calls.insert(0, text(Does::Begin));
    looped.calls.push(text(Does::End));
    let pack = |from: usize| Some(phase("pack();", &[from], &[5], true));
    run(&first, &[pack(0), None, Some(looped.clone())]).expect("is right");
    fails(run(&first, &[pack(2), None, Some(looped.clone())]), &["`pack();`, reads x2 `second`"]);
    fails(run(&first, &[Some(looped.clone())]), &["`mix();`, reads x5 `workspace`"]);
    let mut divided = looped.clone();
    if let Does::Call(effect) = &mut divided.calls[1].does {
        effect.divided = true;
    }
    fails(run(&first, &[pack(0), None, Some(divided)]), &["`soft();`", "divides between threads"]);
    let mut shared = first;
    shared.buffers[x(2)].place = Place::Memory(KernelMemory::Arena(None));
    fails(run(&shared, &[pack(0), None, Some(looped)]), &["of which other parts fill some"]);
}

#[test]
fn weights_are_packed_before_they_are_read() {
    let first = program(vectors(), vec![fill(1, 0)]);
    let mut reads = phase("product();", &[0], &[3], true);
    if let Does::Call(effect) = &mut reads.calls[0].does {
        effect.weights = Some(64);
    }
    fails(run(&first, &[Some(reads)]), &["reads weights at 64, where none are packed"]);
    // Two kernels with their weights in one place.
    let mut k = product(3, [0, 1], 2);
    k.kernel.pack = Some(call(&[Argument::B, Argument::Packed]));
    k.kernel.packed_bytes = 128;
    let pack = PackCall { call: call(&[Argument::B, Argument::Packed]), inputs: k.inputs, packed: 0 };
    let mut two = program(vectors(), vec![step("one", KernelWork::Kernel(k.clone()))]);
    two.info.packed_bytes = 192;
    two.prepacking = vec![step("pack", KernelWork::Pack(pack))].into();
    emitted::packing(&two, &[]).expect("is right");
    k.packed = 64;
    two.steps.push(step("two", KernelWork::Kernel(k)));
    let text = emitted::packing(&two, &[]).expect_err("overlap");
    assert!(text.contains("are packed to one place"), "{text}");
    // A part of packing that needs another.
    let mut scratch = program(vectors(), Vec::new());
    scratch.buffers[x(1)].place = Place::Memory(KernelMemory::Packing(0));
    let parts = [vec![phase("a();", &[0], &[1], false)], vec![phase("b();", &[1], &[], false)]];
    let text = emitted::packing(&scratch, &parts).expect_err("is not there");
    assert!(text.contains("part 1 of packing, `b();`, reads x1"), "{text}");
}
