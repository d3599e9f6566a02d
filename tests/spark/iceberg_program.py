"""Reads the one table of a REST catalog by Iceberg's own runtime, and prints what it finds as JSON.

``python iceberg_program.py URI JAR REWRITES``: with ``True`` its files are rewritten as one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyspark
from pyspark.sql import SparkSession


def main(uri: str, jar: str, *, rewrites: bool) -> dict[str, Any]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.jars": jar,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": uri,
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    (found,) = spark.sql("SHOW TABLES IN lake.archive").collect()
    table = f"lake.archive.{found.tableName}"

    def rows() -> list[list[Any]]:
        spark.catalog.refreshTable(table)
        return [list(row) for row in spark.sql(f"SELECT number, note FROM {table} ORDER BY number").collect()]

    result: dict[str, Any] = {"spark": pyspark.__version__, "rows": rows()}
    if rewrites:
        options = "map('rewrite-all', 'true')"
        spark.sql(f"CALL lake.system.rewrite_data_files(table => 'archive.{found.tableName}', options => {options})")
        result["after"] = rows()
    result["files"] = spark.sql(f"SELECT count(DISTINCT _file) FROM {table}").first()[0]
    return result


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], rewrites=sys.argv[3] == "True")))
