//! `greenroom ca`: an authority of one's own, and certificates for nodes and people.

use std::process::ExitCode;

use greenroom::identity::{Authority, IssueRequest};

use crate::cli::CaCommand;

pub(super) fn run(command: CaCommand) -> anyhow::Result<ExitCode> {
    match command {
        CaCommand::Create { dir } => {
            let authority = Authority::create(&dir)?;
            eprintln!("made an authority: keep {} to yourself", dir.join("ca.key").display());
            super::print(&authority.certificate_path().display().to_string())
        }
        CaCommand::Issue { dir, name, hosts, role, days, out } => {
            let request = IssueRequest { name, hosts, role: role.into(), valid_days: days };
            let files = Authority::open(&dir)?.issue(&request, &out)?;
            let lines = [&files.ca, &files.certificate, &files.key].map(|file| file.display().to_string());
            super::print(&lines.join("\n"))
        }
    }
}
