//! Compiles the C shim for DPDK; only with the feature `dpdk`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    dpdk();
}

/// DPDK libraries that the shim links to. Drivers are loaded when the program runs.
#[cfg(feature = "dpdk")]
const LIBRARIES: &[&str] = &[
    "rte_ethdev",
    "rte_eal",
    "rte_mbuf",
    "rte_mempool",
    "rte_net",
    "rte_ring",
    "rte_kvargs",
];

#[cfg(feature = "dpdk")]
fn dpdk() {
    const SHIM: &str = "src/dpdk/shim.c";
    println!("cargo::rerun-if-changed={SHIM}");
    let libdpdk = pkg_config::Config::new()
        .cargo_metadata(false)
        .atleast_version("21.11")
        .probe("libdpdk")
        .unwrap_or_else(|error| {
            panic!("libdpdk is needed for the feature dpdk (libdpdk-dev): {error}")
        });
    let mut build = cc::Build::new();
    build.file(SHIM).includes(&libdpdk.include_paths);
    // pkg-config's crate drops these flags of libdpdk.
    build.flag("-include").flag("rte_config.h");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        build.flag("-march=corei7");
    }
    // DPDK's headers use functions that DPDK marks as experimental.
    build.define("ALLOW_EXPERIMENTAL_API", None).warnings(false);
    build.compile("linerate_dpdk_shim");
    for path in &libdpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
}
