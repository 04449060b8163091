"""Object stores behind one interface: S3 by the standard library; gs and az by a separate process that imports
obstore.
"""
