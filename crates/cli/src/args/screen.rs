//! `--tui`.

use clap::Args;

/// Option of commands that can run on the full screen.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct ScreenArgs {
    /// Show progress, rate, percentiles, losses and findings on the full screen during the run: p
    /// pauses the display, s saves the events so far, q ends the run
    #[cfg(feature = "tui")]
    #[arg(long, help_heading = super::heading::OUTPUT, conflicts_with_all = ["json", "json_stream", "quiet"], env = "LINERATE_TUI")]
    pub tui: bool,
}

impl ScreenArgs {
    pub fn is_enabled(self) -> bool {
        #[cfg(feature = "tui")]
        return self.tui;
        #[cfg(not(feature = "tui"))]
        false
    }
}
