//! `--tui`.

use clap::Args;

/// Whether a command is shown on the whole terminal.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct ScreenArgs {
    /// Show what runs, its rate, percentiles, losses by place and findings on the whole terminal
    /// meanwhile: p pauses the picture, s saves what was told so far, q ends it
    #[cfg(feature = "tui")]
    #[arg(long, help_heading = "Output", conflicts_with_all = ["json", "json_stream", "quiet"], env = "LINERATE_TUI")]
    pub tui: bool,
}

impl ScreenArgs {
    /// Whether somebody asked for it.
    pub fn is_asked(self) -> bool {
        #[cfg(feature = "tui")]
        return self.tui;
        #[cfg(not(feature = "tui"))]
        false
    }
}
