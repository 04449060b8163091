// Applies the chosen colour scheme before the page is drawn. Without a choice, that of the system is used.
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* storage is disabled in this browser */ }
