//! How a simulated run is set up, and how much goes wrong in it.

use greenroom_core::Seed;
use greenroom_engine::{EngineConfig, UpdateOrder};
use greenroom_messages::engine::PauseMode;
use greenroom_messages::weights::WeightMode;
use greenroom_rollout::{GradeIn, RolloutConfig};
use greenroom_run::{EvaluationConfig, RunConfig, ScheduleMode};
use greenroom_sandbox::PoolConfig;
use greenroom_weights::WeightsConfig;
use rand::Rng;

/// How many misfortunes each part meets at most, and how likely a call is to meet one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Misfortunes {
    /// Of each engine: a call hangs or loses its connection, the engine restarts, a load fails (with or without having
    /// changed the weights), an answer is slow, 503, or given up half-way.
    pub engine: u32,
    /// Of the provider and its boxes: creating fails, hangs or is slow, a box is lost in the middle of a command, a
    /// command hangs beyond its time-out, destroying fails at first, set-up fails at first.
    pub sandbox: u32,
    /// Of the trainer: an error before or after the weights changed, slowness up to beyond the deadline, a crash.
    pub trainer: u32,
    /// Of publisher and receiver: a failure just before the commit.
    pub weights: u32,
    /// The probability that a call meets one, while any are left.
    pub probability: f64,
}

/// A part that is broken on purpose, to show that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The provider hands out a box that is already held.
    BoxHandedOutTwice,
    /// An engine reports new weights and goes on with the old ones.
    StaleWeights,
    /// Failures of infrastructure reach the Conductor as completed rollouts with reward 0.
    FailuresDressedAsRollouts,
    /// The first group of each batch is never reported.
    GroupsLost,
    /// Destroying a box does nothing and says it did.
    BoxesLeak,
}

/// How a simulated run is set up.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The schedule.
    pub run: RunConfig,
    /// Rollouts.
    pub rollout: RolloutConfig,
    /// Proxies and fleet.
    pub engine: EngineConfig,
    /// The pool of sandboxes.
    pub pool: PoolConfig,
    /// How weights travel.
    pub weights: WeightsConfig,
    /// How many engines there are.
    pub engines: u32,
    /// How many requests each takes at once.
    pub max_in_flight: u32,
    /// The version of SGLang that each claims to be.
    pub engine_version: &'static str,
    /// Tasks to train on.
    pub tasks: u32,
    /// Held-out tasks.
    pub held_out_tasks: u32,
    /// How long an engine takes for a token, milliseconds.
    pub token_ms: u64,
    /// How long an optimizer step takes, milliseconds.
    pub train_ms: u64,
    /// Whether the policy is warm-started.
    pub warm_start: bool,
    /// What goes wrong.
    pub misfortunes: Misfortunes,
    /// From then on, in virtual milliseconds, no engine can be reached any more.
    pub engines_lost_at_ms: Option<u64>,
    /// A part that is broken on purpose.
    pub sabotage: Option<Sabotage>,
    /// A run that has not ended by then, in virtual milliseconds, hangs.
    pub time_limit_ms: u64,
}

impl Default for Scenario {
    /// A small run in which nothing goes wrong.
    fn default() -> Self {
        Self {
            run: RunConfig {
                steps: 3,
                groups_per_batch: 2,
                samples_per_group: 2,
                // more than all misfortunes together, so that only what lasts ends a run
                step_retries: 30,
                batch_retries: 30,
                batch_silence_ms: 45 * 60_000,
                train_timeout_ms: 300_000,
                weights_timeout_ms: 120_000,
                update_timeout_ms: 120_000,
                evaluation: EvaluationConfig { samples_per_task: 1, ..EvaluationConfig::default() },
                ..RunConfig::default()
            },
            rollout: RolloutConfig {
                max_turns: 4,
                exec_timeout_ms: 20_000,
                eval_timeout_ms: 20_000,
                claim_timeout_ms: 120_000,
                turn_timeout_ms: 60_000,
                max_new_tokens: 160,
                max_context_tokens: 8_192,
                max_attempts: 6,
                min_trainable: 1,
                ..RolloutConfig::default()
            },
            engine: EngineConfig { probe_interval_ms: 10_000, ..EngineConfig::default() },
            pool: PoolConfig { warm_boxes: 2, max_boxes: 8, max_creating: 2, ..PoolConfig::default() },
            weights: WeightsConfig::default(),
            engines: 2,
            max_in_flight: 8,
            engine_version: "0.5.23",
            tasks: 2,
            held_out_tasks: 1,
            token_ms: 20,
            train_ms: 30_000,
            warm_start: false,
            misfortunes: Misfortunes::default(),
            engines_lost_at_ms: None,
            sabotage: None,
            time_limit_ms: 48 * 3_600_000,
        }
    }
}

impl Scenario {
    /// A small run with a schedule, a fleet, pools and misfortunes that depend on the seed.
    pub fn random(seed: u64) -> Self {
        let mut random = Seed::new(seed).child("scenario").random();
        let mut scenario = Self::default();
        let mut among = |count: u32| random.random_range(0..count);
        scenario.run.schedule = [ScheduleMode::Sync, ScheduleMode::Async][among(2) as usize];
        scenario.run.steps = 2 + u64::from(among(2));
        scenario.run.groups_per_batch = 1 + among(3);
        scenario.run.samples_per_group = 2 + among(2);
        scenario.run.pause =
            [PauseMode::Drain, PauseMode::Abort, PauseMode::Retract, PauseMode::InPlace][among(4) as usize];
        scenario.rollout.max_running = 1 + among(8);
        scenario.engine.update_order = [UpdateOrder::Parallel, UpdateOrder::Rolling][among(2) as usize];
        scenario.engine_version = ["0.5.23", "0.5.10.post1"][among(2) as usize];
        scenario.engines = 1 + among(3);
        scenario.max_in_flight = 1 + among(4);
        scenario.pool.warm_boxes = among(3);
        scenario.pool.max_boxes = 2 + among(6);
        scenario.weights.mode = [WeightMode::Full, WeightMode::Delta][among(2) as usize];
        scenario.weights.anchor_every = u64::from(2 + among(4));
        scenario.held_out_tasks = among(2);
        scenario.warm_start = among(2) == 1;
        scenario.misfortunes = Misfortunes {
            engine: among(6),
            sandbox: among(10),
            trainer: among(4),
            weights: among(3),
            probability: [0.02, 0.1, 0.3][among(3) as usize],
        };
        scenario.rollout.grade_in = if among(4) == 0 { GradeIn::SameBox } else { GradeIn::FreshBox };
        scenario
    }

    /// A run of more than an hour, with a fleet of two.
    pub fn hour() -> Self {
        let mut scenario = Self { tasks: 4, token_ms: 60, train_ms: 120_000, ..Self::default() };
        scenario.run.steps = 24;
        scenario.run.groups_per_batch = 4;
        scenario.run.samples_per_group = 4;
        scenario.misfortunes = Misfortunes { engine: 10, sandbox: 20, trainer: 4, weights: 3, probability: 0.02 };
        scenario
    }
}
