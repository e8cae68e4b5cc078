//! Scripts of Slurm through real processes: what their `#SBATCH` lines ask for is done, said to be without
//! effect, or refused by line (I11, I13); and Slurm's variables are there.

use testsuite::world;
use testsuite::world::World;

fn script(world: &World, name: &str, lines: &str) -> String {
    let path = world.file(name);
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Submits a script and gives its id and what was said.
fn submit(world: &World, more: &[&str], script: &str) -> (u64, String) {
    let ran = world.docket(&[&["submit"], more, &[script]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    (ran.text().trim().parse().unwrap(), ran.err())
}

#[test]
fn a_script_of_slurm_gets_what_it_asks_for_and_is_told_what_has_no_effect() {
    let mut world = world!();
    let _node = world.up(8);
    let text = "\
#SBATCH -J fit -N 1 --ntasks=2 -c2 # two tasks
#SBATCH --time=0-00:05:30# five and a half minutes
#SBATCH --mem-per-cpu 10M --mail-type=END,FAIL --mail-user=a@example.org
#SBATCH -p batch --account=x  --mail-type=ALL
#SBATCH --output=out_%x_%j.txt --export=ALL,COLOUR=red

echo \"$SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_NTASKS $SLURM_CPUS_PER_TASK $SLURM_CPUS_ON_NODE\"
echo \"$SLURM_MEM_PER_NODE $SLURM_NNODES $SLURM_JOB_PARTITION $COLOUR ${SLURM_STEP_ID-none}\"
echo \"$SLURM_SUBMIT_DIR\"
#SBATCH --mem=1P
echo to stderr >&2";
    let path = script(&world, "fit.sh", text);
    world.set("SLURM_STEP_ID", "7");
    world.set("SLURM_JOB_ID", "99");
    let ran = world.docket(&["submit", "-D", world.file("").to_str().unwrap(), &path]);
    let job: u64 = ran.text().trim().parse().unwrap_or_else(|_| panic!("{}", ran.describe()));
    let said = ran.err();
    assert!(
        said.contains("without effect in docket: --mail-type, --mail-user, --account\n"),
        "{said}"
    );
    assert!(said.contains("partition batch is without effect"), "{said}");
    assert_eq!(world.wait_end(job)["state"], "DONE");
    let shown = world.show(job);
    assert_eq!((&shown["cpus"], &shown["mem_bytes"]), (&4.into(), &(40 << 20).into()));
    assert_eq!((&shown["name"], &shown["queue"]), (&"fit".into(), &"default".into()));
    let lines = world.lines(&format!("out_fit_{job}.txt"));
    assert_eq!(lines[0], format!("{job} fit 2 2 4"));
    assert_eq!(lines[1], "40 1 default red none");
    assert!(lines[2].starts_with('/'), "{lines:?}");
    assert_eq!(lines[3], "to stderr");
}

#[test]
fn tasks_of_an_array_have_slurms_numbers_and_files_of_their_own() {
    let world = world!();
    let _node = world.up(4);
    let dir = world.file("");
    let text = format!(
        "#SBATCH --array=1-7:3%2 --chdir={} -o a_%A_%a.txt -e e_%j.txt\n\
         echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MIN \
         $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP $SLURM_JOB_ID\n\
         echo error $SLURM_ARRAY_TASK_ID >&2",
        dir.display()
    );
    let (job, said) = submit(&world, &[], &script(&world, "a.sh", &text));
    assert_eq!(said, "");
    world.wait_end(job);
    assert_eq!(world.show(job)["array"]["limit"], 2);
    for task in [1, 4, 7] {
        let own = format!("{job}_{task}");
        assert_eq!(world.lines(&format!("a_{own}.txt")), [format!("{job} {task} 3 1 7 3 {own}")]);
        assert_eq!(world.lines(&format!("e_{own}.txt")), [format!("error {task}")]);
    }
}

#[test]
fn what_docket_cannot_do_is_refused_by_line_and_nothing_is_submitted() {
    let world = world!();
    let _node = world.up(2);
    for (text, part) in [
        (
            "#SBATCH -J x\n#SBATCH --nodes=2 # two",
            "s.sh:3: --nodes: 2: docket runs a job on one node",
        ),
        ("#SBATCH --time=1:2:3:4", "s.sh:2: --time: `1:2:3:4` is no time"),
        ("#SBATCH --partitoin=x", "did you mean --partition?"),
        ("#SBATCH --exclusive", "s.sh:2: --exclusive: not in docket"),
    ] {
        let ran = world.docket(&["submit", &script(&world, "s.sh", &format!("{text}\necho"))]);
        assert_eq!(ran.code, Some(2), "{}", ran.describe());
        assert!(ran.err().contains(part), "{}", ran.describe());
    }
    assert!(world.list_ids().is_empty());
    let pbs = script(&world, "pbs.sh", "#PBS -l nodes=2\ntrue");
    let (job, said) = submit(&world, &["-W"], &pbs);
    assert!(said.contains("pbs.sh:2: #PBS lines are not read"), "{said}");
    assert_eq!(world.show(job)["state"], "DONE");
}

#[test]
fn a_partition_is_a_queue_where_there_are_queues() {
    let mut world = world!();
    world.set("DOCKET_CONTROLLER__QUEUES", "short.max_time=1h");
    let _node = world.up(2);
    let short = script(&world, "short.sh", "#SBATCH -p short -t 5\ntrue");
    let (job, said) = submit(&world, &[], &short);
    assert_eq!((said.as_str(), &world.show(job)["queue"]), ("", &"short".into()));
    let ran = world.docket(&["submit", &script(&world, "w.sh", "#SBATCH -p shrot\ntrue")]);
    assert!(ran.err().contains("no queue shrot: did you mean short?"), "{}", ran.describe());
}

#[test]
fn slurms_variables_come_without_a_script_too() {
    let world = world!();
    let _node = world.up(2);
    let job =
        world.submit_sh(&["--slurm-env", "-c", "2"], "echo $SLURM_JOB_ID $SLURM_CPUS_PER_TASK");
    world.wait_end(job);
    assert_eq!(world.ok(&["logs", &job.to_string()]), format!("{job} 2\n"));
    let without = world.submit_sh(&[], "echo ${SLURM_JOB_ID-none}");
    world.wait_end(without);
    assert_eq!(world.ok(&["logs", &without.to_string()]), "none\n");
}
