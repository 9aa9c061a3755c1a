//! Small tasks graded by a command: one answer about one file.

use serde_json::{Value, json};

use super::content::{Commands, Request, Split};
use super::error::MakeError;
use super::process::{run, shell};

/// The image of a task without a repository.
pub(super) const BLANK_IMAGE: &str = "blank";

/// One question about one file.
#[derive(Clone, Debug)]
pub(super) struct CommandTask {
    pub(super) id: String,
    pub(super) text: String,
    pub(super) split: Split,
    pub(super) command: String,
    pub(super) file: String,
    content: String,
}

/// Every request of every file; one file of each request is kept from the demonstrations.
pub(super) fn all(commands: &Commands) -> Vec<CommandTask> {
    let mut tasks = Vec::new();
    for (number, request) in commands.requests.iter().enumerate() {
        for (position, (file, content)) in commands.files.iter().enumerate() {
            let split = match (position == number % commands.files.len(), number % 2) {
                (true, 0) => Split::Rl,
                (true, _) => Split::Heldout,
                (false, _) => Split::Sft,
            };
            tasks.push(CommandTask::new(request, file, content, split));
        }
    }
    tasks
}

impl CommandTask {
    fn new(request: &Request, file: &str, content: &str, split: Split) -> Self {
        Self {
            id: format!("cmd.{}.{}", request.name, file.trim_end_matches(".txt")),
            text: format!("{} {file} into out.txt", request.request),
            split,
            command: request.command.clone(),
            file: file.to_owned(),
            content: content.to_owned(),
        }
    }

    /// The row in the sample schema. Checked: the answer earns 1, nothing and an empty answer earn 0.
    pub(super) fn sample(&self, scratch: &std::path::Path) -> Result<Value, MakeError> {
        std::fs::create_dir_all(scratch).map_err(|error| MakeError::file(scratch, error))?;
        let put = |name: &str, text: &str| {
            let path = scratch.join(name);
            std::fs::write(&path, text).map_err(|error| MakeError::file(&path, error))
        };
        put(&self.file, &self.content)?;
        let answer = shell(scratch, &format!("{} < {}", self.command, self.file))?;
        let grader = grader(&answer);
        put("__eval__.py", &grader)?;
        let status = || Ok::<_, MakeError>(run(scratch, &["python3", "-B", "__eval__.py"], &[], 60)?.status);
        let untouched = status()?;
        put("out.txt", "")?;
        let empty = status()?;
        put("out.txt", &answer)?;
        let right = status()?;
        std::fs::remove_dir_all(scratch).map_err(|error| MakeError::file(scratch, error))?;
        if untouched == 0 || empty == 0 || right != 0 {
            return Err(MakeError::check(&self.id, "its grader does not tell the answer from nothing"));
        }
        Ok(json!({
            "text": self.text,
            "label": self.id,
            "metadata": {
                "instance_id": self.id,
                "task": self.text,
                "image": BLANK_IMAGE,
                "pool": BLANK_IMAGE,
                "files": { self.file.as_str(): self.content },
                "eval_kind": "cmd",
                "eval_cmd": "python3 -B __eval__.py",
                "eval_files": { "__eval__.py": grader },
            },
        }))
    }
}

/// A program that compares `out.txt` with the answer, which it holds itself: what became of the question's file is no matter.
fn grader(answer: &str) -> String {
    format!(
        "import pathlib\nimport sys\n\nwanted = {wanted}\nout = pathlib.Path(\"out.txt\")\n\
         given = out.read_text(errors=\"replace\") if out.is_file() else \"\"\n\
         sys.exit(0 if given.split(\"\\n\") == wanted.split(\"\\n\") else 1)\n",
        wanted = Value::from(answer),
    )
}
