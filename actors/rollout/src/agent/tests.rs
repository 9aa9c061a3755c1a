//! Rules of the episode that recordings with a free, never failing model cannot show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::*;

const FENCED: &str = "do it\n\n```mswea_bash_command\nls\n```";

fn host() -> HostFacts {
    let word = |text: &str| text.to_owned();
    let uname = Uname {
        system: word("Linux"),
        node: word("box"),
        release: word("6.1"),
        version: word("#1"),
        machine: word("x86_64"),
    };
    HostFacts { uname, process_environment: BTreeMap::new() }
}

fn default_file() -> AgentFile {
    AgentFile::from_yaml(include_str!("../../../../config/agent/default.yaml"), "config/agent/default.yaml").unwrap()
}

fn agent(change: impl FnOnce(&mut AgentFile)) -> Agent {
    let mut file = default_file();
    change(&mut file);
    let task = AgentTask { task: "Fix {{ it }}.".to_owned(), ..AgentTask::default() };
    Agent::new(Arc::new(AgentDefinition::new(file).unwrap()), task, &host(), Duration::from_secs(100)).unwrap()
}

fn reply(content: &str, cost: f64) -> Reply {
    Reply { content: content.to_owned(), finish_reason: Some("stop".to_owned()), cost, tool_calls: Vec::new() }
}

/// Play replies at one second each, every command giving `output`; the end's status and the roles of the messages.
fn play(mut agent: Agent, replies: &[Reply], output: &str) -> (Agent, Option<String>) {
    let mut now = Duration::from_secs(100);
    let mut replies = replies.iter();
    loop {
        match agent.next(now) {
            NextStep::Query { .. } => match replies.next() {
                Some(reply) => agent.on_reply(reply.clone()).unwrap(),
                None => return (agent, None),
            },
            NextStep::Execute { .. } => {
                now += Duration::from_secs(1);
                agent.on_output(ExecResult::finished(output, 0), now).unwrap();
            }
            NextStep::Exit(exit) => {
                let status = exit.status.as_str().to_owned();
                return (agent, Some(status));
            }
        }
    }
}

#[test]
fn limits_are_looked_at_before_a_call_steps_and_cost_first() {
    let work = vec![reply(FENCED, 0.5); 10];
    let cases = [
        ("no limit", 0, 0.0, 0, None, 11),
        ("steps", 3, 0.0, 0, Some("LimitsExceeded"), 3),
        ("cost reached exactly", 0, 1.0, 0, Some("LimitsExceeded"), 2),
        ("cost passed", 0, 1.2, 0, Some("LimitsExceeded"), 3),
        ("time", 0, 0.0, 4, Some("TimeExceeded"), 4),
        ("steps before time", 2, 0.0, 2, Some("LimitsExceeded"), 2),
    ];
    for (name, steps, cost, seconds, status, calls) in cases {
        let agent = agent(|file| {
            file.agent.step_limit = steps;
            file.agent.cost_limit = cost;
            file.agent.wall_time_limit_seconds = seconds;
        });
        let (agent, ours) = play(agent, &work, "ok\n");
        assert_eq!((ours.as_deref(), agent.calls()), (status, calls), "{name}");
        if let Some(status) = status {
            let last = agent.messages().last().unwrap();
            assert_eq!((last.role, last.content.as_str()), (Role::Exit, status), "{name}");
        }
    }
}

#[test]
fn a_reply_that_fails_to_parse_is_paid_for_and_kept_aside() {
    let replies = [reply("nothing", 0.25), reply(FENCED, 0.5), reply("nothing again", 0.25)];
    let (agent, _) = play(agent(|_| {}), &replies, "ok\n");
    assert_eq!(agent.cost(), 1.0);
    let failed: Vec<_> =
        agent.failed_replies().iter().map(|failed| (failed.call_index, failed.messages_before)).collect();
    assert_eq!(failed, [(0, 2), (2, 5)]);
    let origins: Vec<_> = agent.messages().iter().map(|message| message.origin).collect();
    let expected = [
        Origin::Prompt,
        Origin::Prompt,
        Origin::FormatError { call_index: 0 },
        Origin::Reply { call_index: 1 },
        Origin::Observation { call_index: 1, action_index: 0 },
        Origin::FormatError { call_index: 2 },
    ];
    assert_eq!(origins, expected);
}

#[test]
fn format_errors_end_the_episode_only_in_a_row() {
    let bad = || reply("nothing", 0.0);
    let good = || reply(FENCED, 0.0);
    let (agent_in_a_row, status) = play(agent(|_| {}), &[bad(), bad(), good(), bad(), bad(), bad()], "ok\n");
    assert_eq!((status.as_deref(), agent_in_a_row.calls()), (Some("RepeatedFormatError"), 6));
    let (_, status) = play(agent(|file| file.agent.max_consecutive_format_errors = 0), &vec![bad(); 20], "ok\n");
    assert_eq!(status, None);
}

#[test]
fn the_next_step_is_the_same_until_it_is_answered() {
    let mut agent = agent(|_| {});
    for _ in 0..3 {
        assert!(
            matches!(agent.next(Duration::from_secs(200)), NextStep::Query { call_index: 0, messages } if messages.len() == 2)
        );
    }
    assert_eq!(agent.calls(), 1);
    let early = agent.on_output(ExecResult::finished("", 0), Duration::ZERO).unwrap_err();
    assert!(matches!(early, AgentError::OutOfTurn { expected: "a reply", .. }), "{early}");
    agent.on_reply(reply(FENCED, 0.0)).unwrap();
    let timeout = Duration::from_secs(60);
    let expected = NextStep::Execute { call_index: 0, action_index: 0, command: "ls", cwd: "", timeout };
    assert_eq!(agent.next(Duration::ZERO), expected);
    assert!(agent.on_reply(reply(FENCED, 0.0)).is_err());
}

#[test]
fn a_failed_call_ends_the_episode_with_its_type() {
    let mut agent = agent(|_| {});
    agent.next(Duration::ZERO);
    agent.on_error("ContextWindowExceededError", "too long").unwrap();
    let NextStep::Exit(exit) = agent.next(Duration::ZERO) else { panic!() };
    assert_eq!((exit.status.as_str(), exit.submission.as_str()), ("ContextWindowExceededError", ""));
    let last = agent.messages().last().unwrap().to_trajectory();
    assert_eq!((&last["content"], &last["extra"]["exception_str"]), (&"too long".into(), &"too long".into()));
    assert!(agent.on_error("X", "y").is_err());
}

#[test]
fn a_template_that_fails_later_ends_the_episode() {
    let broken = agent(|file| file.model.observation_template = "{{ gone }}".to_owned());
    let (broken, status) = play(broken, &[reply(FENCED, 0.0)], "ok\n");
    assert_eq!(status.as_deref(), Some("UndefinedError"));
    assert_eq!(broken.messages().last().unwrap().content, "'gone' is undefined");
    let mut file = default_file();
    file.agent.instance_template = "{{ gone }}".to_owned();
    let never =
        Agent::new(Arc::new(AgentDefinition::new(file).unwrap()), AgentTask::default(), &host(), Duration::ZERO);
    assert!(matches!(never, Err(AgentError::TemplateRender { template: "agent.instance_template", .. })));
}

#[test]
fn variables_win_in_upstreams_order() {
    let show = "{{ step_limit }} {{ system }} {{ timeout }} {{ action_regex | length }} {{ n_model_calls }} {{ task }} {{ cwd }} {{ env.A }}";
    let mut file = default_file();
    file.agent.system_template = show.to_owned();
    file.model.observation_template = "{{ n_model_calls }} {{ elapsed_seconds }} {{ model_cost }}".to_owned();
    file.environment.env.insert("A".to_owned(), "a".to_owned());
    let mut host = host();
    for (name, value) in [("system", "Darwin"), ("task", "not this"), ("n_model_calls", "nor this"), ("timeout", "7")] {
        host.process_environment.insert(name.to_owned(), value.to_owned());
    }
    let task = AgentTask { task: "this".to_owned(), cwd: Some("/work".to_owned()), ..AgentTask::default() };
    let definition = Arc::new(AgentDefinition::new(file).unwrap());
    let agent = Agent::new(Arc::clone(&definition), task.clone(), &host, Duration::from_secs(100)).unwrap();
    let regex_length = DEFAULT_ACTION_REGEX.chars().count();
    assert_eq!(agent.messages()[0].content, format!("30 Darwin 7 {regex_length} 0 this /work a"));
    let (agent, _) = play(agent, &[reply(FENCED, 0.5)], "ok\n");
    assert_eq!(agent.messages()[3].content, "1 1 0.5");
    host.process_environment.insert("output".to_owned(), "x".to_owned());
    let agent = Agent::new(definition, task, &host, Duration::from_secs(100)).unwrap();
    assert_eq!(play(agent, &[reply(FENCED, 0.0)], "ok\n").1.as_deref(), Some("TypeError"));
}

#[test]
fn in_tool_mode_a_submission_drops_the_observations_of_its_reply() {
    let call = |id: &str| ToolCall {
        id: id.to_owned(),
        name: "bash".to_owned(),
        arguments: "{\"command\": \"x\"}".to_owned(),
    };
    let mut agent = agent(|file| file.model.protocol = ActionProtocol::ToolCall);
    agent.next(Duration::ZERO);
    let tool_calls = vec![call("1"), call("2"), call("3")];
    agent.on_reply(Reply { tool_calls, ..Reply::default() }).unwrap();
    agent.on_output(ExecResult::finished("first\n", 0), Duration::ZERO).unwrap();
    agent.on_output(ExecResult::finished(format!("{SUBMIT_SENTINEL}\nmine\n"), 0), Duration::ZERO).unwrap();
    let roles: Vec<_> = agent.messages().iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "exit"]);
    assert_eq!(agent.exit().unwrap().submission, "mine\n");
}

#[test]
fn the_default_file_shows_long_output_by_its_ends_and_corrects_replies() {
    let (agent, _) = play(agent(|_| {}), &[reply(FENCED, 0.0), reply("none", 0.0)], &"é".repeat(10_007));
    let shown = &agent.messages()[3].content;
    assert!(shown.starts_with("<returncode>0</returncode>\n<warning>\n"), "{}", &shown[..80]);
    assert!(shown.contains("<elided_chars>\n7 characters elided\n</elided_chars>\n<output_tail>\né"));
    assert_eq!(shown.matches('é').count(), 10_000);
    assert!(agent.messages()[4].content.contains("Expected exactly 1 action, found 0."));
    assert!(agent.messages()[1].content.starts_with("Here is your task:\n\nFix {{ it }}.\n\nWork in small steps"));
    assert!(agent.messages()[0].content.contains("\n```mswea_bash_command\npwd && ls\n```\n"));
}

#[test]
fn a_trajectory_holds_the_messages_the_end_and_no_secret() {
    let failing = agent(|file| {
        file.agent.step_limit = 1;
        file.model.without_effect.insert("model_kwargs".to_owned(), serde_json::json!({"api_key": "hush"}));
    });
    let (agent, _) = play(failing, &[reply(FENCED, 0.5)], "ok\n");
    let trajectory = agent.to_trajectory();
    assert_eq!(trajectory["info"]["exit_status"], "LimitsExceeded");
    assert_eq!(trajectory["info"]["model_stats"], serde_json::json!({"instance_cost": 0.5, "api_calls": 1}));
    assert_eq!(trajectory["messages"][2]["extra"]["actions"][0]["command"], "ls");
    assert_eq!(trajectory["messages"][4]["role"], "exit");
    assert!(!trajectory.to_string().contains("hush"));
}
