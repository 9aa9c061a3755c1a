//! Writes into the binaries where libtorch is, so that they run without any environment variable.
//!
//! torch-sys tells its direct dependents which libtorch it was built against; without the feature `torch` there is nothing to
//! write. `LD_LIBRARY_PATH` still wins over it.

fn main() {
    println!("cargo::rerun-if-changed=src/build.rs");
    if let Some(folder) = std::env::var_os("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", folder.display());
    }
}
