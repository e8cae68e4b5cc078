//! `submit --dry-run`: whether, where and when a job could run, and nothing is submitted.

use testsuite::patience::{SOON, wait_until};
use testsuite::world;

#[test]
fn a_dry_run_says_whether_where_and_when_and_submits_nothing() {
    let world = world!();
    let _node = world.up(2);
    let ask = |options: &[&str]| {
        let words = [&["submit", "--dry-run"][..], options, &["--", "sleep", "1000"][..]].concat();
        world.docket(&words)
    };
    wait_until("the node takes jobs", SOON, || ask(&["-c", "2"]).text().contains("at once"));
    let now = ask(&["-c", "2"]);
    assert_eq!(now.code, Some(0), "{}", now.describe());
    assert!(now.text().starts_with("It would start at once, on "), "{}", now.describe());
    let never = ask(&["-c", "64"]);
    assert_eq!(never.code, Some(1), "{}", never.describe());
    assert!(never.text().starts_with("It could never run: "), "{}", never.describe());
    assert!(never.text().contains("64 asked, 2 in all"), "{}", never.describe());
    let unknown = ask(&["--node", "nowhere"]);
    assert_eq!(unknown.code, Some(1), "{}", unknown.describe());
    assert!(unknown.text().contains("nowhere"), "{}", unknown.describe());
    assert_eq!(world.list_ids(), Vec::<u64>::new(), "nothing was submitted");

    let runs = world.submit(&["-c", "2", "-t", "1h", "--", "sleep", "1000"]);
    world.wait_state(runs, "RUN");
    let later = ask(&["-c", "1"]);
    assert_eq!(later.code, Some(0));
    assert!(later.text().starts_with("It would wait"), "{}", later.describe());
    assert!(
        later.text().contains(&format!("when {runs} ends by its time limit")),
        "{}",
        later.describe()
    );
    let after = ask(&["--after-ok", &runs.to_string(), "--hold"]);
    assert!(after.text().contains(&format!("It would wait for {runs}.")), "{}", after.describe());
    assert!(after.text().contains("until docket release"), "{}", after.describe());
    let json = ask(&["-c", "64", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.text()).unwrap();
    assert_eq!((&json["ever"], &json["now"]), (&false.into(), &false.into()), "{json:#}");
    // What a submit would be refused for, it is refused for here.
    let wrong = ask(&["--after-ok", "999"]);
    assert!(wrong.code != Some(0) && wrong.err().contains("999"), "{}", wrong.describe());
    assert_eq!(world.list_ids(), [runs]);
}
