//! Folders of this machine in the place of sandboxes: grading plans run by a real shell.

#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests; each takes what it needs")]

use std::path::Path;
use std::process::{Command, Stdio};

use greenroom_rollout::grading::{
    CHANGE_PATH, CommandOutcome, Grade, GradeError, GradeStep, Grader, GradingTask, Taken, Work,
};

/// Runs a command in a folder. What a box has apart from its work tree lies beside the folder.
pub fn run(folder: &Path, command: &str) -> CommandOutcome {
    let beside = |name: &str| format!("{}.{name}", folder.display());
    let command = command.replace(CHANGE_PATH, &beside("change")).replace("in /tmp /dev/shm", "in \"$SCRATCH\"");
    std::fs::create_dir_all(beside("scratch")).unwrap();
    let output = Command::new("/bin/sh")
        .args(["-c", &format!("exec 2>&1\n{command}")])
        .current_dir(folder)
        .env("HOME", beside("home"))
        .env("SCRATCH", beside("scratch"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    CommandOutcome::finished(output.status.code().unwrap().into(), text)
}

/// A box's files as they were before anything was done there.
pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// What an agent left in its folder.
pub fn take(task: &GradingTask, folder: &Path) -> Work {
    let outcome = run(folder, &task.take_command().command);
    match task.taken(&outcome) {
        Taken::File(path) => Work::Change(std::fs::read(path).unwrap()),
        Taken::Not(reason) => Work::NotTaken(reason),
    }
}

/// Does what a grader says; `fresh` makes a folder that the agent never touched and the task in it.
pub fn grade(
    mut grader: Grader,
    mut fresh: impl FnMut() -> (std::path::PathBuf, GradingTask),
) -> Result<Grade, GradeError> {
    let mut folder = std::path::PathBuf::new();
    loop {
        match grader.next() {
            GradeStep::FreshBox => {
                let (made, task) = fresh();
                folder = made;
                grader.on_fresh_box(task)?;
            }
            GradeStep::Run(command) => grader.on_outcome(&run(&folder, &command.command))?,
            GradeStep::WriteFiles(files) => {
                let written = files.iter().try_for_each(|(path, content)| match path.as_str() {
                    CHANGE_PATH => std::fs::write(format!("{}.change", folder.display()), content),
                    _ => std::fs::write(folder.join(path), content),
                });
                match written {
                    Ok(()) => grader.on_files_written()?,
                    Err(error) => grader.on_files_refused(&error.to_string())?,
                }
            }
            GradeStep::Done(grade) => return Ok(grade),
        }
    }
}
