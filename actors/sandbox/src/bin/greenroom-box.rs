//! The helper of sandboxes as a program of its own: small, so that a box starts fast.

fn main() -> std::process::ExitCode {
    greenroom_sandbox::box_init_main()
}
