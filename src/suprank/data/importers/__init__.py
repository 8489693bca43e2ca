"""Importers that turn public datasets, folders, tables and generated sets into manifests."""

from suprank.data.importers.base import Importer, ImportResult
from suprank.data.importers.cars import CARS
from suprank.data.importers.cub import CUB
from suprank.data.importers.dyml import DYML_ANIMAL, DYML_PRODUCT, DYML_VEHICLE
from suprank.data.importers.folder import FOLDER
from suprank.data.importers.hf import HF, import_hf
from suprank.data.importers.inaturalist import INAT_BASE, INAT_FULL
from suprank.data.importers.inshop import INSHOP
from suprank.data.importers.landmarks import GLDV2, HGLDV2
from suprank.data.importers.revisited import ROXFORD5K, RPARIS6K
from suprank.data.importers.sfm import SFM120K
from suprank.data.importers.sop import SOP
from suprank.data.importers.table import CSV

BENCHMARKS = {
    importer.name: importer
    for importer in (
        SOP,
        CUB,
        CARS,
        INSHOP,
        INAT_BASE,
        INAT_FULL,
        DYML_VEHICLE,
        DYML_ANIMAL,
        DYML_PRODUCT,
        GLDV2,
        HGLDV2,
        ROXFORD5K,
        RPARIS6K,
        SFM120K,
    )
}
"""Importers of public benchmarks, by their name in `suprank data import`."""

__all__ = ["BENCHMARKS", "CSV", "FOLDER", "HF", "ImportResult", "Importer", "import_hf"]
