//! The Conductor: schedule, run database, resume
