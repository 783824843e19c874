"""Steps of an offline pipeline: documents in, documents out. Names load on first use."""

from typing import TYPE_CHECKING

from thalweg.core.lazy import lazy_names

_WHERE = {
    "PipelineStep": "step",
    "BaseReader": "readers.base",
    "BaseDiskReader": "readers.base",
    "JsonlReader": "readers.jsonl",
    "BaseFilter": "filters.base",
    "ColumnFilter": "filters.column_filter",
    "GopherQualityFilter": "filters.gopher",
    "GopherRepetitionFilter": "filters.gopher",
    "FineWebQualityFilter": "filters.web",
    "C4QualityFilter": "filters.web",
    "C4ParagraphFilter": "filters.web",
    "ParquetReader": "readers.parquet",
    "ParquetWriter": "writers.parquet",
    "TextReader": "readers.text",
    "CsvReader": "readers.text",
    "IpcReader": "readers.tables",
    "WebDatasetReader": "readers.tables",
    "RecordsReader": "readers.tables",
    "HuggingFaceDatasetReader": "readers.tables",
    "WarcReader": "readers.warc",
    "HtmlReader": "readers.pages",
    "XmlReader": "readers.pages",
    "EmailReader": "readers.pages",
    "Trafilatura": "extractors.trafilatura",
    "BaseExtractor": "extractors.trafilatura",
    "URLFilter": "filters.url",
    "LanguageFilter": "filters.language",
    "LambdaFilter": "filters.lambda_filter",
    "LengthFilter": "filters.lambda_filter",
    "RegexFilter": "filters.lambda_filter",
    "SamplerFilter": "filters.lambda_filter",
    "DiskWriter": "writers.base",
    "JsonlWriter": "writers.jsonl",
    "RecordsWriter": "writers.records",
    "EncodeText": "encode",
    "EncodeChat": "encode",
}

__all__ = [
    "BaseDiskReader",
    "BaseExtractor",
    "BaseFilter",
    "BaseReader",
    "C4ParagraphFilter",
    "C4QualityFilter",
    "ColumnFilter",
    "CsvReader",
    "DiskWriter",
    "EmailReader",
    "EncodeChat",
    "EncodeText",
    "FineWebQualityFilter",
    "GopherQualityFilter",
    "GopherRepetitionFilter",
    "HtmlReader",
    "HuggingFaceDatasetReader",
    "IpcReader",
    "JsonlReader",
    "JsonlWriter",
    "LambdaFilter",
    "LanguageFilter",
    "LengthFilter",
    "ParquetReader",
    "ParquetWriter",
    "PipelineStep",
    "RecordsReader",
    "RecordsWriter",
    "RegexFilter",
    "SamplerFilter",
    "TextReader",
    "Trafilatura",
    "URLFilter",
    "WarcReader",
    "WebDatasetReader",
    "XmlReader",
]

if TYPE_CHECKING:
    from thalweg.steps.encode import EncodeChat, EncodeText
    from thalweg.steps.extractors.trafilatura import BaseExtractor, Trafilatura
    from thalweg.steps.filters.base import BaseFilter
    from thalweg.steps.filters.column_filter import ColumnFilter
    from thalweg.steps.filters.gopher import GopherQualityFilter, GopherRepetitionFilter
    from thalweg.steps.filters.lambda_filter import LambdaFilter, LengthFilter, RegexFilter, SamplerFilter
    from thalweg.steps.filters.language import LanguageFilter
    from thalweg.steps.filters.url import URLFilter
    from thalweg.steps.filters.web import C4ParagraphFilter, C4QualityFilter, FineWebQualityFilter
    from thalweg.steps.readers.base import BaseDiskReader, BaseReader
    from thalweg.steps.readers.jsonl import JsonlReader
    from thalweg.steps.readers.pages import EmailReader, HtmlReader, XmlReader
    from thalweg.steps.readers.parquet import ParquetReader
    from thalweg.steps.readers.tables import HuggingFaceDatasetReader, IpcReader, RecordsReader, WebDatasetReader
    from thalweg.steps.readers.text import CsvReader, TextReader
    from thalweg.steps.readers.warc import WarcReader
    from thalweg.steps.step import PipelineStep
    from thalweg.steps.writers.base import DiskWriter
    from thalweg.steps.writers.jsonl import JsonlWriter
    from thalweg.steps.writers.parquet import ParquetWriter
    from thalweg.steps.writers.records import RecordsWriter

__getattr__ = lazy_names(__name__, _WHERE)
