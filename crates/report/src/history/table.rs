//! Entries as a table for other programs: one row per document, one column per figure, base units.

use std::fmt::Write as _;

use linerate_record::expect::FIGURES;
use linerate_record::facts::Role;

use super::entry::HistoryEntry;
#[cfg(feature = "parquet")]
use crate::ReportError;
use crate::csv::{column_name, quote_field};

/// Export format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryExportFormat {
    /// Complete documents with tags and notes, for `import`.
    Json,
    /// Table with a row per document.
    Csv,
    /// Columns of CSV with types.
    #[cfg(feature = "parquet")]
    Parquet,
}

/// Text column: name and reader.
type TextColumn = (&'static str, fn(&HistoryEntry) -> String);

const TEXT_COLUMNS: &[TextColumn] = &[
    ("id", |e| e.id.clone()),
    ("kind", |e| e.kind.clone()),
    ("started", |e| e.started.to_string()),
    ("label", |e| e.label.clone().unwrap_or_default()),
    ("target", |e| e.target.clone()),
    ("hosts", |e| e.hosts.join(" ")),
    ("protocol", |e| e.protocol.clone().unwrap_or_default()),
    ("plan", |e| e.plan.clone()),
    ("tags", |e| {
        e.tags.iter().cloned().collect::<Vec<_>>().join(" ")
    }),
    ("notes", |e| {
        let notes: Vec<_> = e.notes.iter().map(|note| note.text.clone()).collect();
        notes.join(" | ")
    }),
    ("recorded_by", |e| {
        e.recorded_by.map_or("", Role::as_str).to_owned()
    }),
    ("peer_protocol", |e| {
        e.peer_protocol.clone().unwrap_or_default()
    }),
    ("client", |e| e.client.clone().unwrap_or_default()),
    ("experiment", |e| e.experiment.clone().unwrap_or_default()),
];

type CountColumn = (&'static str, fn(&HistoryEntry) -> i64);

const COUNT_COLUMNS: &[CountColumn] = &[
    ("interrupted", |e| i64::from(e.interrupted)),
    ("runs", |e| i64::try_from(e.runs).unwrap_or(i64::MAX)),
    ("caveats", |e| i64::try_from(e.caveats).unwrap_or(i64::MAX)),
];

/// Renders entries as CSV (RFC 4180) with a header. Unknown values are empty fields.
#[must_use]
pub fn entries_to_csv(entries: &[HistoryEntry]) -> String {
    let texts = TEXT_COLUMNS.iter().map(|(name, _)| (*name).to_owned());
    let counts = COUNT_COLUMNS.iter().map(|(name, _)| (*name).to_owned());
    let figures = FIGURES
        .iter()
        .map(|figure| column_name(figure.name, figure.unit));
    let header: Vec<String> = texts.chain(counts).chain(figures).collect();
    let mut out = header.join(",");
    out.push('\n');
    for entry in entries {
        let texts = TEXT_COLUMNS
            .iter()
            .map(|(_, read)| quote_field(&read(entry)));
        let counts = COUNT_COLUMNS
            .iter()
            .map(|(_, read)| read(entry).to_string());
        let figures = FIGURES.iter().map(|figure| {
            let value = entry.figures.get(figure.name);
            value.map_or_else(String::new, ToString::to_string)
        });
        let row: Vec<String> = texts.chain(counts).chain(figures).collect();
        let _ = writeln!(out, "{}", row.join(","));
    }
    out
}

/// Renders entries as a Parquet file with one row group, compressed with Snappy. Unknown values are
/// null.
///
/// # Errors
/// [`ReportError::Export`] with the writer's message.
#[cfg(feature = "parquet")]
pub fn entries_to_parquet(entries: &[HistoryEntry]) -> Result<Vec<u8>, ReportError> {
    write_parquet(entries).map_err(|error| ReportError::Export {
        format: "Parquet",
        why: error.to_string(),
    })
}

#[cfg(feature = "parquet")]
fn write_parquet(entries: &[HistoryEntry]) -> parquet::errors::Result<Vec<u8>> {
    use std::sync::Arc;

    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    let mut schema = String::from("message linerate {\n");
    for (name, _) in TEXT_COLUMNS {
        let _ = writeln!(schema, "required binary {name} (UTF8);");
    }
    for (name, _) in COUNT_COLUMNS {
        let _ = writeln!(schema, "required int64 {name};");
    }
    for figure in FIGURES {
        let _ = writeln!(
            schema,
            "optional double {};",
            column_name(figure.name, figure.unit)
        );
    }
    schema.push('}');
    let schema = Arc::new(parse_message_type(&schema)?);
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("linerate ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    let missing_column =
        || parquet::errors::ParquetError::General("a column is missing".to_owned());
    for (_, read) in TEXT_COLUMNS {
        let values: Vec<ByteArray> = entries
            .iter()
            .map(|entry| ByteArray::from(read(entry).into_bytes()))
            .collect();
        let mut column = group.next_column()?.ok_or_else(missing_column)?;
        column
            .typed::<ByteArrayType>()
            .write_batch(&values, None, None)?;
        column.close()?;
    }
    for (_, read) in COUNT_COLUMNS {
        let values: Vec<i64> = entries.iter().map(read).collect();
        let mut column = group.next_column()?.ok_or_else(missing_column)?;
        column
            .typed::<Int64Type>()
            .write_batch(&values, None, None)?;
        column.close()?;
    }
    for figure in FIGURES {
        let values: Vec<Option<f64>> = entries
            .iter()
            .map(|entry| entry.figures.get(figure.name).copied())
            .collect();
        let levels: Vec<i16> = values.iter().map(|v| i16::from(v.is_some())).collect();
        let present_values: Vec<f64> = values.into_iter().flatten().collect();
        let mut column = group.next_column()?.ok_or_else(missing_column)?;
        column
            .typed::<DoubleType>()
            .write_batch(&present_values, Some(&levels), None)?;
        column.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(bytes)
}
