//! The pages behind the trainer's error codes, for `greenroom explain`.

use greenroom_core::ErrorPage;

/// The pages of this crate's codes, `GR0701` to `GR0712`.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0701",
        cause: "a setting of the trainer is out of range or contradicts another one",
        remedy: "the message names the setting and the values it may have; see `greenroom config show --origin`",
    },
    ErrorPage {
        code: "GR0702",
        cause: "a training batch or a demonstration is inconsistent (lengths, ids, masks, log-probabilities, rewards)",
        remedy: "the message names the rollout and the column; the rollout that produced it is at fault, not the trainer",
    },
    ErrorPage {
        code: "GR0703",
        cause: "one sample is longer than a micro-batch may be, and samples are never split",
        remedy: "raise tokens_per_micro_batch (it costs memory) or lower the rollout's maximal context",
    },
    ErrorPage {
        code: "GR0704",
        cause: "a gradient was infinite or not a number; weights and optimizer were left as they were",
        remedy: "look at the batch's log-probability mismatch; lower the learning rate or the importance-sampling cap",
    },
    ErrorPage {
        code: "GR0705",
        cause: "the tensor library refused an operation",
        remedy: "when it speaks of memory, lower tokens_per_micro_batch or logits_chunk_tokens; otherwise report it",
    },
    ErrorPage {
        code: "GR0706",
        cause: "a checkpoint could not be read or written",
        remedy: "check that the path exists, is writable and has room",
    },
    ErrorPage {
        code: "GR0707",
        cause: "a checkpoint is damaged: a file is missing, or its size or checksum differs from the manifest",
        remedy: "nothing was loaded from it; --resume goes on from the newest checkpoint of the run that is sound (GR0212)",
    },
    ErrorPage {
        code: "GR0708",
        cause: "a checkpoint belongs to another model (names or shapes of its parameters differ)",
        remedy: "start the run with the model that the checkpoint was made from",
    },
    ErrorPage {
        code: "GR0709",
        cause: "the policy network could not be loaded, run or written",
        remedy: "the message holds the policy's own error; explain its code",
    },
    ErrorPage {
        code: "GR0710",
        cause: "the trainer's thread panicked, so the state of its tensors is unknown",
        remedy: "load the last checkpoint (the run does so by itself with --resume)",
    },
    ErrorPage {
        code: "GR0711",
        cause: "the configured device is not there",
        remedy: "set device to \"cpu\" or \"auto\", or install a libtorch with its CUDA half",
    },
    ErrorPage {
        code: "GR0712",
        cause: "the trainer's thread could not be started or has been stopped",
        remedy: "look for the trainer's last words in the log; its supervisor restarts it from the last checkpoint",
    },
];
