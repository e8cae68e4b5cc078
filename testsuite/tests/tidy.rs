//! The house rules, run by `cargo test`: sizes, headers, purity, who imports whom, docs that are true.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

use std::collections::BTreeSet;
use std::path::Path;
use testsuite::tidy::{Source, files, functions, relative, root, sources};

/// Lines of a file without its tests, and with them.
const FILE_MAX: usize = 600;
const FILE_WITH_TESTS_MAX: usize = 1000;

/// Lines of a function; a test may tell a longer story.
const FUNCTION_MAX: usize = 70;
const TEST_FUNCTION_MAX: usize = 100;

/// Our crates: folder, package, and what of ours each may depend on (design: crates and rooms).
const CRATES: [(&str, &str, &[&str]); 10] = [
    ("proto", "proto", &[]),
    ("units", "units", &[]),
    ("wal", "wal", &[]),
    ("controller/core", "docket-core", &["proto"]),
    ("controller", "controller", &["docket-core", "proto", "units", "wal"]),
    ("worker-agent/core", "worker-agent-core", &["proto"]),
    ("worker-agent", "worker-agent", &["worker-agent-core", "proto", "units", "wal"]),
    (
        "cli",
        "cli",
        &[
            "controller",
            "worker-agent",
            "docket-core",
            "worker-agent-core",
            "proto",
            "units",
            "wal",
        ],
    ),
    (
        "testsuite",
        "testsuite",
        &[
            "sim",
            "cli",
            "controller",
            "worker-agent",
            "docket-core",
            "worker-agent-core",
            "proto",
            "wal",
        ],
    ),
    ("testsuite/sim", "sim", &["docket-core", "worker-agent-core", "proto"]),
];

/// What a pure core may depend on beside `proto`: data types and derives, nothing that acts.
const CORE_MAY_USE: [&str; 4] = ["proto", "prost", "thiserror", "bytes"];

/// Words that have no place in a pure core: clocks, chance, waiting, locks, the outside.
const IMPURE: [&str; 24] = [
    "SystemTime",
    "Instant",
    "std::time",
    "std::fs",
    "std::net",
    "std::io",
    "std::env",
    "std::process",
    "std::thread",
    "tokio",
    "Mutex",
    "RwLock",
    "Atomic",
    "RefCell",
    "HashMap",
    "HashSet",
    "rand::",
    "getrandom",
    "async fn",
    ".await",
    "f32",
    "f64",
    "println!",
    "tracing",
];

fn fail(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

fn read(path: &str) -> String {
    let full = root().join(path);
    std::fs::read_to_string(&full).unwrap_or_else(|e| panic!("{}: {e}", full.display()))
}

#[test]
fn every_source_says_what_it_is() {
    let found: Vec<String> = sources()
        .iter()
        .filter(|source| !source.text.starts_with("//! "))
        .map(|source| source.path.clone())
        .collect();
    fail("these files lack a `//!` header", &found);
}

#[test]
fn no_file_is_too_long() {
    let found: Vec<String> = sources()
        .iter()
        .filter_map(|source| {
            let all = source.text.lines().count();
            let product = source.product_lines().count();
            (all > FILE_WITH_TESTS_MAX || product > FILE_MAX)
                .then(|| format!("{}: {product} lines, {all} with tests", source.path))
        })
        .collect();
    fail("these files hold more than one idea", &found);
}

#[test]
fn no_function_is_too_long() {
    let mut found = Vec::new();
    for source in sources() {
        for function in functions(&source.code) {
            let test = source.is_test(function.line);
            let max = if test { TEST_FUNCTION_MAX } else { FUNCTION_MAX };
            if function.lines > max {
                let (line, lines) = (function.line + 1, function.lines);
                found.push(format!("{}:{line} {} has {lines}", source.path, function.name));
            }
        }
    }
    fail("these functions are too long", &found);
}

#[test]
fn nothing_is_left_undone() {
    // Written in pieces, so that this file is no finding of its own.
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("HA", "CK"),
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("#[ig", "nore]"),
    ];
    let mut found = Vec::new();
    for source in sources() {
        for (number, line) in source.text.lines().enumerate() {
            let hit = words.iter().find(|word| has_word(line, word));
            found.extend(hit.map(|word| format!("{}:{} {word}", source.path, number + 1)));
        }
    }
    fail("finish these or leave them out", &found);
}

/// Does the word stand in the line by itself, not as a part of another?
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(part);
        let after = word.ends_with(|c: char| c.is_alphabetic())
            && line[at + word.len()..].chars().next().is_some_and(part);
        !before && !after
    })
}

/// The lines of a table of a manifest, comments and blanks left out.
fn table<'a>(manifest: &'a str, name: &str) -> Vec<&'a str> {
    let head = format!("[{name}]");
    let lines = manifest.lines().skip_while(|line| line.trim() != head).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Names of the dependencies in a table of a manifest.
fn dependencies(manifest: &str, name: &str) -> Vec<String> {
    let name_of = |line: &&str| line.split(['.', ' ', '=']).next().unwrap_or_default().to_owned();
    table(manifest, name).iter().map(name_of).collect()
}

#[test]
fn crates_depend_only_on_what_they_may() {
    let ours: BTreeSet<&str> = CRATES.iter().map(|(_, package, _)| *package).collect();
    let mut found = Vec::new();
    for (folder, package, allowed) in CRATES {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        assert!(manifest.contains(&format!("name = \"{package}\"")), "{folder} is {package}");
        for dependency in dependencies(&manifest, "dependencies") {
            let named = dependency.as_str();
            if ours.contains(named) && !allowed.contains(&named) {
                found.push(format!("{package} depends on {named}"));
            }
        }
    }
    fail("a crate reaches where it may not", &found);
}

#[test]
fn the_cores_are_pure_by_their_manifests() {
    let mut found = Vec::new();
    for folder in ["controller/core", "worker-agent/core"] {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        for dependency in dependencies(&manifest, "dependencies") {
            if !CORE_MAY_USE.contains(&dependency.as_str()) {
                found.push(format!("{folder} depends on {dependency}"));
            }
        }
        for line in table(&manifest, "dependencies") {
            if line.contains("rpc") {
                found.push(format!("{folder} takes proto with its network half: {line}"));
            }
        }
    }
    fail("a core depends on something that acts", &found);
}

#[test]
fn the_cores_are_pure_by_their_words() {
    let mut found = Vec::new();
    let is_core = |source: &&Source| {
        source.path.starts_with("controller/core/src")
            || source.path.starts_with("worker-agent/core/src")
    };
    let all = sources();
    for source in all.iter().filter(is_core) {
        for (number, line) in source.product_lines() {
            for word in IMPURE.iter().filter(|word| has_word(line, word)) {
                found.push(format!("{}:{} {word}", source.path, number + 1));
            }
        }
    }
    assert!(all.iter().filter(is_core).count() > 10, "the cores were read");
    fail("a core reads a clock, draws a number, waits or reaches out", &found);
}

#[test]
fn nobody_imports_the_edge() {
    // The edge (rpc, http) knows the rooms; the rooms do not know the edge. Two files put them together.
    let together = ["controller/src/lib.rs", "controller/src/controller.rs"];
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("controller/src/")) {
        let inside = source.path.starts_with("controller/src/rpc")
            || source.path.starts_with("controller/src/http")
            || together.contains(&source.path.as_str());
        for (number, line) in source.product_lines() {
            if !inside && (line.contains("crate::rpc") || line.contains("crate::http")) {
                found.push(format!("{}:{} {}", source.path, number + 1, line.trim()));
            }
        }
    }
    fail("a room imports the edge", &found);
}

#[test]
fn every_channel_is_bounded_and_every_wait_is_for_a_condition() {
    let mut found = Vec::new();
    for source in sources() {
        for (number, line) in source.code.lines().enumerate() {
            let unbounded = line.contains("unbounded_channel") || line.contains("mpsc::channel()");
            if unbounded && !source.is_test(number) {
                found.push(format!("{}:{} an unbounded channel", source.path, number + 1));
            }
            let sleeps = line.contains("thread::sleep(") || line.contains("time::sleep(");
            if sleeps
                && source.path.starts_with("testsuite/")
                && source.path != "testsuite/src/patience.rs"
                // Examples are programs for people: a replay keeps the times of its trace.
                && !source.path.starts_with("testsuite/examples/")
            {
                found.push(format!("{}:{} a test that sleeps", source.path, number + 1));
            }
        }
    }
    fail("bounds and conditions", &found);
}

#[test]
fn unsafe_code_says_why_it_is_sound() {
    let found: Vec<String> = sources()
        .iter()
        .filter(|source| source.code.lines().any(|line| has_word(line, "unsafe {")))
        .filter(|source| !source.text.contains("SAFETY:"))
        .map(|source| source.path.clone())
        .collect();
    fail("unsafe blocks without a SAFETY comment", &found);
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let paths = [
        concat!("/wo", "rk/"),
        concat!("/fa", "rm/"),
        concat!("/ro", "ot/"),
        concat!("/tmp/br", "ief"),
    ];
    let mut found = Vec::new();
    for file in files() {
        let name = relative(&file);
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        for (number, line) in text.lines().enumerate() {
            if name != "Cargo.lock" && paths.iter().any(|path| line.contains(path)) {
                found.push(format!("{name}:{} {line}", number + 1));
            }
        }
    }
    fail("paths of one machine", &found);
}

/// Markdown files of the project.
fn pages() -> Vec<(String, String)> {
    let markdown =
        files().into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "md"));
    markdown.map(|path| (relative(&path), std::fs::read_to_string(&path).unwrap())).collect()
}

/// Everything between backticks, outside fenced blocks.
fn quoted(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            words.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    words
}

#[test]
fn docs_name_only_files_that_exist() {
    let tops = [
        "proto/",
        "wal/",
        "controller/",
        "worker-agent/",
        "cli/",
        "testsuite/",
        "docs/",
        "deploy/",
        ".ci/",
    ];
    let mut found = Vec::new();
    let mut looked = 0;
    for (page, text) in pages() {
        for word in quoted(&text) {
            let plain = !word.contains([' ', '*', '<', '{', '$', '…']);
            if plain && tops.iter().any(|top| word.starts_with(top)) {
                looked += 1;
                if !root().join(&word).exists() {
                    found.push(format!("{page}: `{word}`"));
                }
            }
        }
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let here = root().join(&page);
            let beside = here.parent().unwrap_or(Path::new("")).join(target);
            if !target.is_empty() && !target.contains("://") && !beside.exists() {
                found.push(format!("{page}: ({link})"));
            }
        }
    }
    assert!(looked > 20, "the docs name files: {looked}");
    fail("the docs name files that are not there", &found);
}

/// Names in the tables of tests that bring their own runner: `("a_sentence", function),`.
fn table_names(source: &Source) -> impl Iterator<Item = String> {
    // A table of one stands on one line, brackets and all.
    let rows = source.text.lines().map(|line| line.trim().trim_start_matches("&["));
    let names = rows.filter_map(|row| row.strip_prefix("(\"")?.split_once('"'));
    names.map(|(name, _)| name.to_owned())
}

#[test]
fn docs_name_only_tests_that_exist() {
    let all = sources();
    let mut tests: BTreeSet<String> =
        all.iter().flat_map(|source| functions(&source.code)).map(|f| f.name).collect();
    let runners = all.iter().filter(|source| source.path.contains("/tests/"));
    tests.extend(runners.flat_map(table_names));
    let is_name = |word: &String| {
        word.matches('_').count() >= 3
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    for page in ["docs/failure-model.md", "docs/finish-robustness.md"] {
        let names: Vec<String> = quoted(&read(page)).into_iter().filter(is_name).collect();
        assert!(names.len() > 15, "{page} names its tests");
        let found: Vec<String> = names.into_iter().filter(|name| !tests.contains(name)).collect();
        fail(&format!("{page} names tests that are not there"), &found);
    }
}

#[test]
fn every_dependency_is_accounted_for() {
    let ours: BTreeSet<&str> = CRATES.iter().map(|(_, package, _)| *package).collect();
    let manifest = read("Cargo.toml");
    let page = read("docs/dependencies.md");
    let rows: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let used: Vec<String> = dependencies(&manifest, "workspace.dependencies")
        .into_iter()
        .filter(|name| !ours.contains(name.as_str()))
        .collect();
    let mut found: Vec<String> = used
        .iter()
        .filter(|name| !rows.contains(&name.as_str()))
        .map(|n| format!("{n} has no row"))
        .collect();
    found.extend(
        rows.iter()
            .filter(|row| !used.iter().any(|name| name == *row))
            .map(|row| format!("{row} is not used")),
    );
    let anywhere: String =
        CRATES.iter().map(|(folder, ..)| read(&format!("{folder}/Cargo.toml"))).collect();
    found.extend(
        used.iter()
            .filter(|name| !anywhere.contains(&format!("\n{name}")))
            .map(|n| format!("no crate uses {n}")),
    );
    fail("docs/dependencies.md and Cargo.toml differ", &found);
}
