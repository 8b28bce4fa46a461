//! Appearance of text: colours, width and character set, chosen from the terminal's capabilities.

use std::borrow::Cow;
use std::str::FromStr;

/// Largest width of text: longer lines are hard to read.
pub const MAX_WIDTH: usize = 100;

/// Width of text for files and pipes: that of common windows.
pub const PIPE_WIDTH: usize = 80;

/// Smallest width of tables; the terminal wraps lines in narrower windows.
pub const MIN_WIDTH: usize = 60;

/// Appearance of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextStyle {
    /// True if colours (SGR sequences) are used.
    pub color: bool,
    /// Columns per line.
    pub width: usize,
    /// True if characters beyond ASCII are used.
    pub unicode: bool,
    /// True if a run is its figures, one line of CPU for each end and the command of each finding.
    /// Otherwise it has all details: shares of time, evidence, gains.
    pub brief: bool,
}

/// Value of `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorChoice {
    /// Colours on a terminal.
    #[default]
    Auto,
    /// Colours also in files and pipes.
    Always,
    /// No colours.
    Never,
}

impl FromStr for ColorChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(format!("`{text}` is not auto, always or never")),
        }
    }
}

/// Properties of the output and environment variables. Empty variables count as unset.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputProperties<'a> {
    /// True if the output is a terminal.
    pub is_terminal: bool,
    /// Columns of the terminal.
    pub columns: Option<usize>,
    /// `NO_COLOR`.
    pub no_color: Option<&'a str>,
    /// `CLICOLOR_FORCE`.
    pub clicolor_force: Option<&'a str>,
    /// `TERM`.
    pub term: Option<&'a str>,
    /// First of `LC_ALL`, `LC_CTYPE` and `LANG` that is set.
    pub locale: Option<&'a str>,
}

/// What follows the escape character in the sequences of [`TextStyle::paint`].
pub(crate) const COLOR_SEQUENCES: [&str; 7] = ["[0m", "[1m", "[2m", "[31m", "[32m", "[33m", "[36m"];

impl TextStyle {
    /// Style for files and pipes: no colours, ASCII, [`MAX_WIDTH`] columns.
    pub const PLAIN: Self = Self {
        color: false,
        width: MAX_WIDTH,
        unicode: false,
        brief: false,
    };

    /// Chooses the style: `--color`, then NO_COLOR, then CLICOLOR_FORCE, then the terminal.
    #[must_use]
    pub fn choose(choice: ColorChoice, output: &OutputProperties<'_>) -> Self {
        let set = |variable: Option<&str>| variable.is_some_and(|value| !value.is_empty());
        let forced = set(output.clicolor_force) && output.clicolor_force != Some("0");
        let dumb = output.term == Some("dumb");
        let color = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto if set(output.no_color) => false,
            ColorChoice::Auto => forced || (output.is_terminal && !dumb),
        };
        let unicode = output.locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        Self {
            color,
            width: match output.columns {
                Some(columns) if output.is_terminal => columns.clamp(MIN_WIDTH, MAX_WIDTH),
                _ => PIPE_WIDTH,
            },
            unicode: unicode && !dumb,
            brief: false,
        }
    }

    /// Colours a text without escape sequences.
    pub(crate) fn paint(&self, paint: PaintRole, text: &str) -> String {
        if !self.color || text.is_empty() {
            return text.to_owned();
        }
        let code = match paint {
            PaintRole::Bold => "1",
            PaintRole::Dim => "2",
            PaintRole::Good => "32",
            PaintRole::Warn => "33",
            PaintRole::Bad => "31",
            PaintRole::Heading => "36",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Returns the spelling that the character set allows.
    pub(crate) fn glyph(&self, unicode: &'static str, ascii: &'static str) -> &'static str {
        if self.unicode { unicode } else { ascii }
    }
}

/// Role of a text for its colour. Only the basic colours are used, which users can configure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PaintRole {
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
    Heading,
}

/// Removes characters from external text (host name, error of the peer) that could control the
/// terminal.
///
/// Removed are control characters, which could move the cursor or set the window title, and
/// characters that change the writing direction. A newline or tab becomes a space.
#[must_use]
pub fn strip_control_characters(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !(c.is_control() || is_bidi_control(c));
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars()
            .filter_map(|c| match c {
                '\n' | '\t' => Some(' '),
                c => harmless(c).then_some(c),
            })
            .collect(),
    )
}

/// Returns whether a character is an embedding, override or isolate of Unicode's bidirectional
/// algorithm (UAX 9).
pub(crate) fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Breaks text at spaces into lines of at most `width` characters. Longer words are not split, and
/// a number stays on the line of its `%` sign.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        let mut width_used = 0;
        let mut words = paragraph.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let word_length = word.chars().count();
            let sign = words.peek().filter(|next| next.starts_with('%'));
            let needed_width = word_length + sign.map_or(0, |sign| 1 + sign.chars().count());
            if width_used > 0 && width_used + 1 + needed_width > width {
                lines.push(std::mem::take(&mut line));
                width_used = 0;
            }
            if width_used > 0 {
                line.push(' ');
                width_used += 1;
            }
            line.push_str(word);
            width_used += word_length;
        }
        lines.push(line);
    }
    lines
}

/// Wraps text after a prefix; continuation lines are indented by the prefix's width.
pub(crate) fn wrap_with_prefix(
    prefix: &str,
    painted_prefix: &str,
    text: &str,
    width: usize,
) -> String {
    let indent = prefix.chars().count();
    let lines = wrap(text, width.saturating_sub(indent).max(20));
    let separator = format!("\n{}", " ".repeat(indent));
    format!("{painted_prefix}{}", lines.join(&separator))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_share_is_not_broken_before_its_sign() {
        assert_eq!(
            wrap("server 36.1 % (server", 14),
            ["server 36.1 %", "(server"]
        );
        assert_eq!(
            wrap("server 36.1 % (server", 12),
            ["server", "36.1 %", "(server"]
        );
    }

    #[test]
    fn colours_follow_the_option_then_the_variables_then_the_terminal() {
        use ColorChoice::{Always, Auto, Never};
        for (choice, terminal, no_color, force, term, expected) in [
            (Auto, true, None, None, Some("xterm"), true),
            (Auto, false, None, None, Some("xterm"), false),
            (Auto, true, None, None, Some("dumb"), false),
            (Auto, true, Some("1"), None, None, false),
            (Auto, true, Some(""), None, None, true),
            (Auto, true, Some("1"), Some("1"), None, false),
            (Auto, false, None, Some("1"), Some("dumb"), true),
            (Auto, false, None, Some("0"), None, false),
            (Auto, false, None, Some(""), None, false),
            (Always, false, Some("1"), None, Some("dumb"), true),
            (Never, true, None, Some("1"), None, false),
        ] {
            let output = OutputProperties {
                is_terminal: terminal,
                no_color,
                clicolor_force: force,
                term,
                ..OutputProperties::default()
            };
            let style = TextStyle::choose(choice, &output);
            assert_eq!(style.color, expected, "{choice:?} {output:?}");
        }
    }

    #[test]
    fn width_and_characters_follow_the_terminal() {
        for (terminal, columns, locale, term, expected) in [
            (true, Some(80), Some("en_US.UTF-8"), None, (80, true)),
            (true, Some(300), Some("C.utf8"), None, (MAX_WIDTH, true)),
            (true, Some(20), Some("C"), None, (MIN_WIDTH, false)),
            (false, Some(300), None, None, (PIPE_WIDTH, false)),
            (
                true,
                None,
                Some("de_DE.UTF-8"),
                Some("dumb"),
                (PIPE_WIDTH, false),
            ),
        ] {
            let output = OutputProperties {
                is_terminal: terminal,
                columns,
                locale,
                term,
                ..OutputProperties::default()
            };
            let style = TextStyle::choose(ColorChoice::Auto, &output);
            assert_eq!((style.width, style.unicode), expected, "{output:?}");
        }
    }

    #[test]
    fn a_host_name_cannot_drive_the_terminal() {
        assert_eq!(strip_control_characters("host-1"), "host-1");
        assert_eq!(strip_control_characters("a\x1b]0;title\x07b"), "a]0;titleb");
        assert_eq!(strip_control_characters("two\nlines\r"), "two lines");
        assert_eq!(
            strip_control_characters("abc\u{202e}fed\u{9b}31m"),
            "abcfed31m"
        );
    }

    proptest! {
        #[test]
        fn cleaned_text_has_no_control_characters(text in "\\PC*|[\\x00-\\x1f\\x7f-\\u{9f}a-z]*") {
            prop_assert!(!strip_control_characters(&text).chars().any(char::is_control));
        }

        #[test]
        fn wrapping_keeps_every_word(text in "[a-z \n]{0,200}", width in 5usize..60) {
            let lines = wrap(&text, width);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(words(&lines.join(" ")), words(&text));
            for line in lines {
                prop_assert!(line.len() <= width || !line.contains(' '), "{}", line);
            }
        }
    }
}
