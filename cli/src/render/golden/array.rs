//! An array as people and programs see it.

use super::*;

fn array() -> Task {
    let counts = [("RUN", 4), ("PEND", 1_959), ("DONE", 36), ("EXIT", 1)];
    let mut array = task(130, "sweep", "PEND");
    array.attempt = 0;
    array.array = Some(v1::ArrayView {
        tasks: "0-999,2000-2999".to_owned(),
        total: 2_000,
        counts: counts.map(|(state, n)| (state.to_owned(), n)).into(),
        limit: Some(4),
        race: false,
    });
    array
}

#[test]
fn an_array_is_one_line_of_a_list_and_shows_how_far_it_is() {
    let mut list = table();
    list.list_page(&[array(), failed_prep()]);
    let listed = list.list_end(&ListSummary::default());
    let shown = table().show(&[array()]);
    fits(&listed);
    fits(&shown);
    golden("array.txt", &format!("{listed}\n{shown}"));
    golden("array.json", &renderer(Output::Json, view()).show(&[array()]));
}
