"""Archives, pages, mails and tables: each document once, with its address, and damage is named."""

import gzip
import io
import json
import mailbox
import tarfile
from email.message import EmailMessage

import numpy as np
import pyarrow as pa
import pytest
import zstandard

import thalweg as tw
from thalweg.core.errors import ConfigError, InputError
from thalweg.run.manifest import describe
from thalweg.steps import (
    EmailReader,
    HtmlReader,
    HuggingFaceDatasetReader,
    IpcReader,
    RecordsReader,
    WarcReader,
    WebDatasetReader,
    XmlReader,
)

PAGE = "<!DOCTYPE html><html><head><title>Fluß &amp; Tal</title></head><body><p>Der Fluß biegt ab.</p></body></html>"


def warc(pages, *, compressed=True):
    """A web archive written by the library that owns the format: [(address, type, body)]."""
    warcio = pytest.importorskip("warcio")
    from warcio.statusandheaders import StatusAndHeaders

    out = io.BytesIO()
    writer = warcio.WARCWriter(out, gzip=compressed)
    writer.write_record(writer.create_warcinfo_record("a.warc", {"software": "test"}))
    for url, mime, body in pages:
        if mime == "wet":
            record = writer.create_warc_record(
                url, "conversion", payload=io.BytesIO(body), warc_content_type="text/plain"
            )
        else:
            http = StatusAndHeaders("200 OK", [("Content-Type", mime)], protocol="HTTP/1.1")
            record = writer.create_warc_record(url, "response", payload=io.BytesIO(body), http_headers=http)
        writer.write_record(record)
        record.raw_stream.close()
    return out.getvalue()


# D9
def test_pages_of_a_web_archive_are_read_in_any_character_set_and_the_rest_is_counted(tmp_path):
    pages = [
        ("http://a.de/1", "text/html", PAGE.encode()),
        ("http://a.de/2", "text/html; charset=iso-8859-1", PAGE.encode("latin-1")),
        ("http://a.de/3", "text/html", PAGE.replace("<head>", '<head><meta charset="windows-1252">').encode("cp1252")),
        ("http://a.de/logo", "image/png", b"\x89PNG\r\n"),
        ("http://a.de/wet", "wet", b"nur Text"),
        ("http://a.jp/4", "text/html; charset=iso-2022-jp", "<html>日本の川".encode("iso-2022-jp")),
    ]
    (tmp_path / "a.warc.gz").write_bytes(warc(pages))
    (tmp_path / "b.warc.zst").write_bytes(zstandard.compress(warc(pages, compressed=False)))
    reader = WarcReader(str(tmp_path))
    docs = list(reader())
    assert [d.metadata["url"] for d in docs] == 2 * [p[0] for p in pages if "image" not in p[1]]
    assert [d.text for d in docs[:3]] == [PAGE, PAGE, PAGE.replace("<head>", '<head><meta charset="windows-1252">')]
    assert [d.text for d in docs[3:5]] == ["nur Text", "<html>日本の川"]
    assert all(d.id.startswith("<urn:uuid:") and d.metadata["date"] for d in docs)
    assert reader.stats["other_records"].total == 4  # two notes of the archive, two pictures


# K05 D24
def test_an_archive_that_ends_in_the_middle_is_damage_and_not_an_end(tmp_path):
    pages = [("http://a.de/1", "text/html", PAGE.encode()), ("http://a.de/2", "text/html", b"<html>" * 999)]
    whole, plain = warc(pages), warc(pages, compressed=False)
    for name, data in (("cut.warc.gz", whole[:-40]), ("cut.warc", plain[:-400])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name):
            list(WarcReader(str(tmp_path), glob_pattern=name)())


@pytest.mark.slow
def test_the_main_text_of_pages_is_taken_in_order_and_a_page_that_hangs_costs_itself(tmp_path):
    pytest.importorskip("trafilatura")
    from extracting import Careful

    words = "The river bends to the west, where the deepest water of the valley flows. " * 4
    page = "<html><body><nav>Home | About</nav><article><h1>Rivers</h1><p>{}</p></article></body></html>"
    for i in range(5):
        (tmp_path / f"{i}.html").write_text(page.format(f"{words} Page {i}.") if i != 3 else "<html></html>")
    (tmp_path / "1.html").write_text("HANG")
    (tmp_path / "2.html").write_text("DIE")
    step = Careful(timeout=5, deduplicate=False)
    docs = list(step(HtmlReader(str(tmp_path))(), 0, 1))
    assert [d.text.split()[-1] for d in docs] == ["0.", "4."]
    assert all("Home" not in d.text and "deepest water" in d.text for d in docs)
    assert step.stats.tally.dropped == {"timeout": 1, "no_text": 1, "broken_process": 1}


def test_html_files_give_their_title_and_xml_its_records(tmp_path):
    (tmp_path / "a.html").write_bytes(PAGE.encode())
    [doc] = HtmlReader(str(tmp_path), glob_pattern="*.html")()
    assert doc.text == PAGE
    assert doc.metadata["title"] == "Fluß & Tal"
    rows = "".join(f'<page id="p{i}"><title>T{i}</title><text>one <b>two</b> {i}</text></page>' for i in range(3))
    (tmp_path / "w.xml.gz").write_bytes(gzip.compress(f'<wiki xmlns="urn:x"><site>s</site>{rows}</wiki>'.encode()))
    docs = list(XmlReader(str(tmp_path), glob_pattern="*.xml.gz", record="page", text="text")())
    assert [(d.id, d.text, d.metadata["title"]) for d in docs] == [(f"p{i}", f"one two {i}", f"T{i}") for i in range(3)]
    [whole] = XmlReader(str(tmp_path), glob_pattern="*.xml.gz")()
    assert whole.text == "s" + "".join(f"T{i}one two {i}" for i in range(3))
    (tmp_path / "bad.xml").write_text("<wiki><page>")
    with pytest.raises(InputError, match=r"not well-formed.*bad\.xml"):
        list(XmlReader(str(tmp_path), glob_pattern="bad.xml")())


def test_mails_and_mailboxes_give_their_plain_body(tmp_path):
    mails = []
    for i in range(3):
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = f"Größe {i}", "a@x.org", "b@x.org"
        mail["Message-ID"] = f"<{i}@x.org>"
        mail.set_content(f"Liebe B,\n\nFrom here it is {i} km.\n")
        if i:
            mail.add_alternative("<p>html</p>", subtype="html")
            mail.add_attachment(b"\x00\x01", maintype="application", subtype="octet-stream", filename="m.bin")
        mails.append(mail)
    (tmp_path / "0.eml").write_bytes(mails[0].as_bytes())
    box = mailbox.mbox(tmp_path / "all.mbox")
    for mail in mails:
        box.add(mail)
    box.close()
    docs = list(EmailReader(str(tmp_path))())
    assert [d.id for d in docs] == ["<0@x.org>", "<0@x.org>", "<1@x.org>", "<2@x.org>"]
    assert [d.text for d in docs[1:]] == [f"Liebe B,\n\nFrom here it is {i} km.\n" for i in range(3)]
    assert [d.metadata["attachments"] for d in docs] == [[], [], ["m.bin"], ["m.bin"]]
    assert docs[3].metadata["subject"] == "Größe 2"


# D9
def test_arrow_files_of_both_kinds_give_the_same_rows_whole_or_cut(tmp_path):
    table = pa.table({"text": [f"t{i}" for i in range(100)], "id": [f"d{i}" for i in range(100)], "n": range(100)})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as out:
        out.write_table(table, 10)
    with pa.ipc.new_stream(tmp_path / "b.arrow", table.schema) as out:
        out.write_table(table, 10)
    for more in ({}, {"unit_bytes": 600}):
        for name in ("a.arrow", "b.arrow"):
            docs = list(IpcReader(str(tmp_path), glob_pattern=name, **more)())
            assert [(d.id, d.text, d.metadata["n"]) for d in docs] == [(f"d{i}", f"t{i}", i) for i in range(100)]
    reader = IpcReader(str(tmp_path), glob_pattern="a.arrow", unit_bytes=600)
    shares = [[d.id for d in reader(None, r, 3)] for r in range(3)]
    assert all(shares)
    assert sorted(sum(shares, [])) == sorted(f"d{i}" for i in range(100))  # noqa: RUF017
    data = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "c.arrow").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"no whole Arrow IPC.*c\.arrow"):
        list(IpcReader(str(tmp_path), glob_pattern="c.arrow")())


# D9
@pytest.mark.parametrize("world", [1, 3])
def test_records_and_data_sets_are_dealt_once_and_ids_do_not_depend_on_ranks(tmp_path, world):
    datasets = pytest.importorskip("datasets")
    rows = [{"text": f"t{i}", "n": i} for i in range(2500)]
    with tw.create_records(tmp_path / "rec") as out:
        for row in rows:
            out.write(row)
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    files = {"data_files": str(tmp_path / "rows.jsonl"), "split": "train", "cache_dir": str(tmp_path / "cache")}
    kinds = {
        "records": lambda: RecordsReader(tmp_path / "rec"),
        "saved": lambda: HuggingFaceDatasetReader(str(tmp_path / "saved"), load_from_disk=True),
        "loaded": lambda: HuggingFaceDatasetReader("json", files),
        "streamed": lambda: HuggingFaceDatasetReader("json", files, streaming=True),
    }
    for name, make in kinds.items():
        docs = [d for rank in range(world) for d in make()(None, rank, world)]
        assert sorted((d.metadata["n"], d.text) for d in docs) == [(i, f"t{i}") for i in range(2500)], name
        assert len({d.id for d in docs}) == 2500, name
    if world == 1:
        assert [d.id for d in kinds["records"]()()][:2] == [f"{tmp_path / 'rec'}/0", f"{tmp_path / 'rec'}/1"]
        before = describe(kinds["records"]())
        with tw.create_records(tmp_path / "rec", append=True) as out:
            out.write({"text": "more", "n": 1})
        assert describe(kinds["records"]()) != before
        with pytest.raises(ConfigError, match="split"):
            list(HuggingFaceDatasetReader("json", {k: v for k, v in files.items() if k != "split"})())
        with pytest.raises(ConfigError, match=r"no column 'body'.*text_key"):
            list(RecordsReader(tmp_path / "rec", text_key="body")())


# K10
def test_samples_of_tars_are_read_whole_and_scattered_members_are_named(tmp_path):
    def tar(name, members):
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as out:
            for member, data in members:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                out.addfile(info, io.BytesIO(data))

    tar(
        "a.tar", [("v1.0/0.txt", b"zero"), ("v1.0/0.json", b'{"n": 0}'), ("v1.0/._0.txt", b"x"), ("v1.0/1.txt", b"one")]
    )
    tar("b.tar.gz", [("2.txt", b"two"), ("2.npy", _npy(np.arange(3)))])
    docs = list(WebDatasetReader(str(tmp_path))())
    assert [(d.id, d.text) for d in docs] == [("v1.0/0", "zero"), ("v1.0/1", "one"), ("2", "two")]
    assert docs[0].metadata["json"] == {"n": 0}
    tar("c.tar", [("3.txt", b"a"), ("4.txt", b"b"), ("3.json", b"{}")])
    with pytest.raises(InputError, match=r"'3' stand apart.*c\.tar: 3\.json"):
        list(WebDatasetReader(str(tmp_path), glob_pattern="c.tar")())


def _npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()
