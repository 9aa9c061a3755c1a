//! Promises of data sets: every problem is told, the order is a function of the seed.

use super::*;

const GOOD: &str = r#"{"text": "Do it.", "label": "a", "metadata": {"eval_cmd": "true"}}"#;

fn problems_of(text: &str) -> Vec<String> {
    match Dataset::parse(text, "d.jsonl") {
        Err(RolloutError::DatasetInvalid { problems }) => problems,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_row_of_the_examples_schema_is_read_whole() {
    let row = r#"{"text": "t", "label": "l", "metadata": {"instance_id": "i", "task": "Fix it.", "repo": "o/r",
        "image": "img", "pool": "p", "workdir": "/testbed", "setup_cmd": "git checkout i", "files": {"a/b.txt": "x"},
        "eval_kind": "swesmith", "test_cmd": "pytest", "swesmith_inst": {"FAIL_TO_PASS": ["f"], "PASS_TO_PASS": "[\"p\"]"}}}"#
        .replace('\n', " ");
    let dataset = Dataset::parse(&format!("{row}\n\n{GOOD}\n"), "d").unwrap();
    let [task, plain] = dataset.tasks() else { panic!() };
    assert_eq!((task.id.as_str(), task.prompt.as_str(), task.image.as_str()), ("i", "Fix it.", "img"));
    assert_eq!((task.workdir.as_deref(), task.files["a/b.txt"].as_str()), (Some("/testbed"), "x"));
    let TaskGrading::SweSmith { fail_to_pass, pass_to_pass, .. } = &task.grading else { panic!() };
    assert_eq!((fail_to_pass, pass_to_pass), (&vec!["f".to_owned()], &vec!["p".to_owned()]));
    assert_eq!((plain.id.as_str(), plain.prompt.as_str(), plain.image.as_str()), ("a", "Do it.", "default"));
    assert_eq!(dataset.images().into_iter().collect::<Vec<_>>(), ["default", "img"]);
}

#[test]
fn a_prompt_is_a_text_or_the_first_user_message() {
    let conversation =
        r#"[{"role": "system", "content": "s"}, {"role": "user", "content": "u1"}, {"role": "user", "content": "u2"}]"#;
    for (prompt, expected) in [(r#""p""#, "p"), (conversation, "u1")] {
        let row = format!(r#"{{"prompt": {prompt}, "metadata": {{"eval_cmd": "true", "pool": "q"}}}}"#);
        let dataset = Dataset::parse(&row, "d").unwrap();
        let task = &dataset.tasks()[0];
        assert_eq!((task.prompt.as_str(), task.id.as_str(), task.image.as_str()), (expected, "line-1", "q"));
    }
}

#[test]
fn every_problem_is_a_line_with_place_and_remedy() {
    let cases: &[(&str, &str)] = &[
        ("{", "d.jsonl:1: is not JSON"),
        ("[]", "d.jsonl:1: is not a JSON object"),
        (r#"{"metadata": {"eval_cmd": "x"}}"#, "has no prompt: give text"),
        (r#"{"text": "t", "metadata": {}}"#, "has no eval_cmd, so nothing could be graded"),
        (r#"{"text": "t", "metadata": {"eval_kind": "swesmith", "test_cmd": "x"}}"#, "has no FAIL_TO_PASS tests"),
        (r#"{"text": "t", "metadata": {"eval_kind": "swesmith", "FAIL_TO_PASS": ["x"]}}"#, "has no test_cmd"),
        (r#"{"text": "t", "metadata": {"eval_kind": "magic"}}"#, "use cmd or swesmith"),
        (
            r#"{"text": "t", "metadata": {"eval_cmd": "x", "files": {"../a": ""}}}"#,
            "keep it inside the working directory",
        ),
        (r#"{"text": "t", "metadata": {"eval_cmd": "x", "workdir": "w"}}"#, "write it from / on"),
        (r#"{"text": "t", "metadata": {"eval_cmd": 1}}"#, "metadata.eval_cmd is not text"),
        ("{\"text\": \"t\", \"metadata\": {\"eval_cmd\": \"a\\u0000b\"}}", "metadata.eval_cmd has a NUL character"),
        (
            r#"{"text": "t", "metadata": {"eval_cmd": "x", "setup_cnd": "y"}}"#,
            "has metadata.setup_cnd: did you mean setup_cmd?",
        ),
        (r#"{"text": "t", "metadata": {"eval_comd": "x"}}"#, "has metadata.eval_comd: did you mean eval_cmd?"),
        (r#"{"text": "t", "metdata": {"eval_cmd": "x"}}"#, "has metdata: did you mean metadata?"),
        (
            r#"{"text": "t", "metadata": {"eval_kind": "swesmith", "fail_to_pass": ["x"]}}"#,
            "did you mean FAIL_TO_PASS?",
        ),
        ("\n", "d.jsonl: has no tasks"),
    ];
    for (row, words) in cases {
        let problems = problems_of(row);
        assert!(problems[0].contains(words), "{row}: {problems:?}");
        assert!(problems.iter().all(|problem| !problem.contains('\n')));
    }
    let twice = problems_of(&format!("{GOOD}\n{GOOD}"));
    assert_eq!(twice, ["d.jsonl:2: instance_id a is also on line 1: give every task its own"]);
    assert_eq!(problems_of(&"[]\n".repeat(30)).len(), PROBLEMS_SHOWN + 1);
}

#[test]
fn a_mark_of_byte_order_and_fields_of_others_are_no_problem() {
    let others =
        r#"{"text": "t", "metadata": {"eval_cmd": "x", "difficulty": 3, "repository": "r", "files": {}, "file": "x"}}"#;
    let dataset = Dataset::parse(&format!("\u{feff}{GOOD}\n{others}\n"), "d").unwrap();
    assert_eq!(dataset.tasks().len(), 2);
}

#[test]
fn each_epoch_holds_every_task_once_and_the_order_is_a_function_of_seed_and_position() {
    let rows: Vec<String> = (0..7).map(|n| GOOD.replace("\"a\"", &format!("\"t{n}\""))).collect();
    let dataset = Dataset::parse(&rows.join("\n"), "d").unwrap();
    let ids = |seed: u64, first: u64, count: u32| -> Vec<String> {
        let tasks = dataset.tasks_from(Seed::new(seed), true, first, count);
        tasks.iter().map(|task| task.id.to_string()).collect()
    };
    let all = ids(7, 0, 28);
    for epoch in all.chunks(7) {
        assert_eq!(epoch.iter().collect::<BTreeSet<_>>().len(), 7);
    }
    assert_ne!(all[..7], all[7..14], "each epoch is shuffled anew");
    assert_ne!(all, ids(8, 0, 28));
    for (first, count) in [(0, 3), (5, 9), (20, 8)] {
        assert_eq!(ids(7, first, count), all[first as usize..][..count as usize]);
    }
    assert_eq!(task_at(Seed::new(7), 7, false, 9), 2, "without shuffling the file's order");
}
