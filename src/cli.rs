//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What the exit status tells, of all commands.
const EXIT_STATUSES: &str = "Exit status: 0 when all went well, 1 after an error (its code is explained by `greenroom explain \
                             CODE`), 2 when the command line itself is wrong, 3 when a run was stopped and can go on, 4 when \
                             nodes of a run did not come in time.";

/// Agentic reinforcement learning of language models on your own machines.
#[derive(Parser)]
#[command(name = "greenroom", version, propagate_version = true, after_help = EXIT_STATUSES)]
pub(crate) struct Cli {
    /// Say more: -v, -vv, -vvv.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run everything on this machine: roll out, train, publish.
    #[command(after_help = EXIT_STATUSES)]
    Up(Up),
    /// Show the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Make data sets.
    Dataset {
        #[command(subcommand)]
        command: DatasetCommand,
    },
    /// Check the history of a run against its invariants: exit status 0 when it breaks none, 1 when it breaks some.
    Check {
        /// The run's directory.
        run: PathBuf,
    },
    /// Serve a model by SGLang's protocol.
    Engine(Engine),
    /// Play this machine's roles in a run over several.
    #[cfg(feature = "cluster")]
    #[command(after_help = NODE_STATUSES)]
    Node(NodeCommand),
    /// Look at a run over several machines and steer it, verb by verb.
    #[cfg(feature = "cluster")]
    #[command(after_help = SHELL_STATUSES)]
    Shell(ShellWay),
    /// Do one verb of the shell: `greenroom ctl … help` lists them.
    #[cfg(feature = "cluster")]
    #[command(after_help = CTL_STATUSES)]
    Ctl(Ctl),
    /// Make an authority, and certificates for nodes and people.
    #[cfg(feature = "cluster")]
    Ca {
        #[command(subcommand)]
        command: CaCommand,
    },
    /// Explain an error code.
    Explain {
        /// The code, such as GR0202; without one, all codes are listed.
        code: Option<String>,
    },
}

impl Command {
    /// Whether its answer tells all that went wrong: what the log would warn of is the way there.
    pub(crate) fn tells_all(&self) -> bool {
        #[cfg(feature = "cluster")]
        return matches!(self, Self::Shell(_) | Self::Ctl(_));
        #[cfg(not(feature = "cluster"))]
        false
    }
}

#[derive(Args)]
pub(crate) struct Layers {
    /// A TOML file; may be given several times, later ones win. `greenroom config show --origin` lists the keys.
    #[arg(short, long)]
    pub(crate) config: Vec<PathBuf>,
    /// One value, such as run.steps=10; may be given several times, and wins over files and environment.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) layers: Layers,
    /// The run's name: its directory below --runs.
    #[arg(long)]
    pub(crate) name: String,
    /// The directory of all runs.
    #[arg(long, default_value = "runs")]
    pub(crate) runs: PathBuf,
    /// Go on with a run that was stopped or lost; its own configuration is taken unless --config is given. Tasks, model and
    /// seed must be those that it was begun with.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Run it over several nodes, each a process of this machine. Nodes are parted by commas, the roles of a node by +, and
    /// *N makes N of one [without a layout: controller+rollout,trainer,engine*2,sandbox]; a number is that of engine nodes. A
    /// node that dies is started again. A run that goes on keeps its nodes.
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "LAYOUT", num_args = 0..=1)]
    pub(crate) nodes: Option<Option<greenroom::local_cluster::Layout>>,
}

/// What the exit status of a node tells.
#[cfg(feature = "cluster")]
const NODE_STATUSES: &str = "Exit status: 0 when the run was completed, 1 after an error, 3 when the run was stopped or this \
                             node left, 4 when the gang or the controller did not come in time.";

#[cfg(feature = "cluster")]
#[derive(Args)]
pub(crate) struct NodeCommand {
    /// The node's own TOML file: who it is, its roles, the run's configuration files.
    #[arg(short, long)]
    pub(crate) config: PathBuf,
    /// One value of the run's configuration, such as run.steps=10; the same on every node.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// End with this process, which started the node and tells people of its end.
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) parent: Option<u32>,
}

/// What the exit status of one verb tells.
#[cfg(feature = "cluster")]
const CTL_STATUSES: &str = "Exit status: 0 when the verb was done, 1 when it was not, 2 when it is no verb, 5 when it takes the \
                            role operator; of doctor: 0 well, 1 doubtful, 2 ill.";

/// What the exit status of many verbs tells.
#[cfg(feature = "cluster")]
const SHELL_STATUSES: &str = "Verbs are read from stdin, a line each; `exit`, `quit` or its end ends the shell. Exit status: at a \
                              terminal 0; from a file or pipe all lines are done, and it is the status that `greenroom ctl` \
                              would give to the last one that failed, 0 when none did.";

/// How a shell gets into a run's cluster.
#[cfg(feature = "cluster")]
#[derive(Args)]
pub(crate) struct ShellWay {
    /// The address of any node of the run.
    #[arg(long, value_name = "HOST:PORT", env = "GREENROOM_AT", default_value = "127.0.0.1:4700")]
    pub(crate) at: String,
    /// The run's name.
    #[arg(long, value_name = "NAME", env = "GREENROOM_RUN", default_value = "")]
    pub(crate) run: String,
    /// A directory with ca.pem, one certificate and its key, as `greenroom ca issue --out` makes it.
    #[arg(long, value_name = "DIR", env = "GREENROOM_TLS_DIR", conflicts_with_all = ["ca", "certificate", "key"])]
    pub(crate) tls_dir: Option<PathBuf>,
    /// The authority's certificate.
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "key"])]
    pub(crate) ca: Option<PathBuf>,
    /// The shell's certificate: an operator's, or a viewer's.
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    pub(crate) certificate: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires_all = ["ca", "certificate"])]
    pub(crate) key: Option<PathBuf>,
    /// The file with the cluster's secret.
    #[arg(long, value_name = "FILE", env = "GREENROOM_COOKIE_FILE")]
    pub(crate) cookie_file: Option<PathBuf>,
    /// How answers are shown: table, json or yaml.
    #[arg(short, long, default_value = "table")]
    pub(crate) output: greenroom::shell::Output,
}

#[cfg(feature = "cluster")]
#[derive(Args)]
pub(crate) struct Ctl {
    #[command(flatten)]
    pub(crate) way: ShellWay,
    /// The verb and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "VERB")]
    pub(crate) words: Vec<String>,
}

#[cfg(feature = "cluster")]
#[derive(Subcommand)]
pub(crate) enum CaCommand {
    /// Make an authority: ca.pem for every node, ca.key for nobody.
    Create {
        /// The directory to be made.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Make a certificate, its key, and a copy of ca.pem.
    Issue {
        /// The authority's directory.
        #[arg(long)]
        dir: PathBuf,
        /// The node's or person's name.
        #[arg(long)]
        name: String,
        /// A host name or address of it; may be given several times.
        #[arg(long = "host")]
        hosts: Vec<String>,
        /// What its holder may do: take part, steer, or look.
        #[arg(long, value_enum, default_value_t = CaRole::Node)]
        role: CaRole,
        /// How long it is valid.
        #[arg(long, default_value_t = 365)]
        days: u32,
        /// The directory to write to.
        #[arg(long)]
        out: PathBuf,
    },
}

/// What the holder of a certificate may do.
#[cfg(feature = "cluster")]
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum CaRole {
    /// Take part in runs.
    Node,
    /// Look and steer.
    Operator,
    /// Look.
    Viewer,
}

#[cfg(feature = "cluster")]
impl From<CaRole> for greenroom::identity::CertificateRole {
    fn from(role: CaRole) -> Self {
        match role {
            CaRole::Node => Self::Node,
            CaRole::Operator => Self::Operator,
            CaRole::Viewer => Self::Viewer,
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the resolved configuration.
    Show {
        #[command(flatten)]
        layers: Layers,
        /// Print each value on a line, with where it comes from.
        #[arg(long)]
        origin: bool,
    },
}

#[derive(Subcommand)]
pub(crate) enum DatasetCommand {
    /// Make the quickstart's tasks, demonstrations, images and tokenizer.
    Quickstart {
        /// The directory to be made.
        #[arg(long)]
        out: PathBuf,
        /// Seed of everything random in it.
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Make bug-fixing tasks from projects on PyPI, each checked: the fix earns 1, nothing earns 0.
    MakeBugs(MakeBugs),
    /// Check every task of a file in a sandbox, twice: doing nothing must earn 0, and the fix, where the row tells it, 1.
    Check(CheckDataset),
}

#[derive(Args)]
pub(crate) struct MakeBugs {
    /// The directory to be made. Its data.toml is for `greenroom up --config config/bugs/bugs.toml --config DIR/data.toml`.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// A project and its version; may be given several times. Its source distribution must bring its tests.
    #[arg(long = "package", value_name = "NAME==VERSION", default_values = [
        "inflection==0.5.1", "toolz==1.2.0", "markupsafe==3.0.4", "webcolors==25.10.0", "cachetools==8.0.2",
        "iniconfig==2.3.1", "deepmerge==4.0.0",
    ])]
    pub(crate) packages: Vec<String>,
    /// At most so many tasks of each project.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) tasks_per_package: u32,
    /// Decides which bugs are made.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A Python with pytest that runs the tests; without one, an environment is made in the directory.
    #[arg(long)]
    pub(crate) python: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct CheckDataset {
    /// A file of tasks, JSONL.
    pub(crate) file: PathBuf,
    /// A TOML file with images and sandbox settings; may be given several times. Without one, data.toml beside the file if
    /// there is one, else the folder `images` beside the file.
    #[arg(short, long)]
    pub(crate) config: Vec<PathBuf>,
    /// One value, such as sandbox.local.limits.memory_bytes=4294967296; may be given several times, and wins over files and
    /// environment.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Engine {
    /// A Hugging Face directory.
    #[arg(long)]
    pub(crate) model: PathBuf,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:30000")]
    pub(crate) bind: std::net::SocketAddr,
    /// cpu, cuda:N, or auto.
    #[arg(long, default_value = "cpu")]
    pub(crate) device: String,
    /// What a request yields does not depend on its neighbours.
    #[arg(long)]
    pub(crate) batch_invariant: bool,
}
