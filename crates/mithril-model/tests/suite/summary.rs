//! The table of a model.

use mithril_ir::Place;
use mithril_model::{FlattenOptions, Model, layers};

#[test]
fn the_table_has_shapes_and_parameters() {
    let mut m = Model::new();
    let mlp = layers::build("MLP", vec![[128, 10].into()], vec![]).unwrap().named("mlp").unwrap();
    m.chain(&mlp, (), Place::default()).unwrap();
    m.chain(&layers::build("Softmax", vec![], vec![]).unwrap(), (), Place::default()).unwrap();
    let options = FlattenOptions {
        shapes: vec![("input".into(), vec!["n".into(), 784.into()])],
        ..FlattenOptions::default()
    };
    // 784·128 + 128 = 100480 and 128·10 + 10 = 1290
    let expected = "\
Model(2 layers, inputs=[input], outputs=[output])
Name            Layer    Output shape  Parameters
-------------------------------------------------
mlp             MLP      [n, 10]          101,770
  mlp.linear    Linear   [n, 128]         100,480
  mlp.relu      Relu     [n, 128]               0
  mlp.linear_1  Linear   [n, 10]            1,290
softmax         Softmax  [n, 10]                0
-------------------------------------------------
Parameters: 101,770";
    assert_eq!(m.summary_with(&options).unwrap(), expected);
    let open = m.summary();
    assert!(open.contains("mlp      MLP      [..., 10]              ?"), "{open}");
    assert!(Model::new().summary().ends_with("Parameters: 0"));
}

#[test]
fn shared_parameters_count_once() {
    let mut m = Model::new();
    let linear = layers::linear(4, false).unwrap();
    m.chain(&linear, (), Place::default()).unwrap();
    m.chain(&linear, [("weight", "linear.weight")], Place::default()).unwrap();
    m.set_shapes([("input", vec![2.into(), 4.into()])], &Place::default()).unwrap();
    assert!(m.summary().ends_with("Parameters: 16"));
}
