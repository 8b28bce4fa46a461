//! Compares the committed schemas with the types.

use std::path::Path;

use linerate_report::schema;

#[test]
fn the_committed_schemas_are_current() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (name, schema) in [
        ("record.schema.json", schema::record_schema()),
        ("set.schema.json", schema::set_schema()),
    ] {
        let path = docs.join(name);
        if std::env::var_os("LINERATE_UPDATE").is_some() {
            std::fs::write(&path, &schema).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == schema,
            "docs/{name} is not the schema of the types any more; keys are added, never renamed, from version 0.1.0 on. \
             Make it again with `LINERATE_UPDATE=1 cargo test -p linerate-report --test it schema`"
        );
    }
}
